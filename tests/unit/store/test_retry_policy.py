"""Who is asked again, how long, and what is said meanwhile."""

import multiprocessing
import threading
import time
import weakref
from pathlib import Path

import pytest

import failing_store
from assay.base.errors import ConfigError, StoreAwayError, StoreError
from assay.store.commit_log import CommitLog
from assay.store.objects import FolderStore, RetryingStore, open_store
from assay.store.retry_policy import HURRIED_S, RETRY_BUDGET_S, RetryPolicy, at_once
from clocks import ManualClock
from failing_store import FailingStore, patient


@pytest.mark.parametrize("trouble", ["error", "hang"])
def test_an_outage_is_waited_for_and_said(trouble: failing_store.Trouble) -> None:
    clock = ManualClock()
    failing_store.messages.clear()
    store = patient(FailingStore(open_store("memory:"), {0: trouble}, clock), clock)
    store.put("key", b"bytes")
    assert store.get("key") == b"bytes"
    assert clock.at_s >= failing_store.OUTAGE_S
    waiting, *_, completed = failing_store.messages
    assert waiting.startswith("waiting for s3://simulated (write key), 5")
    assert "of at most 15 min" in waiting
    assert completed.startswith("s3://simulated (write key): answered after")


@pytest.mark.parametrize("trouble", ["error", "hang"])
def test_an_outage_longer_than_the_patience_is_one_error_that_says_try_again(
    trouble: failing_store.Trouble,
) -> None:
    clock = ManualClock()
    failing = FailingStore(open_store("memory:"), {0: trouble}, clock, outage_s=1e9)
    with pytest.raises(StoreAwayError, match=r"Everything committed is intact") as raised:
        patient(failing, clock, budget_s=900.0).get("key")
    assert raised.value.exit_code == 75
    assert 850 <= clock.at_s <= 960


def test_what_is_not_there_is_not_waited_for() -> None:
    clock = ManualClock()
    with pytest.raises(StoreError, match="not there"):
        patient(FailingStore(open_store("memory:"), {}, clock), clock).get("key")
    assert clock.at_s == 0


def test_who_is_asked_to_stop_waits_no_longer() -> None:
    clock = ManualClock()
    store = patient(FailingStore(open_store("memory:"), {0: "error"}, clock, outage_s=1e9), clock)
    store.retry_policy.hurry()
    with pytest.raises(StoreAwayError):
        store.get("key")
    assert clock.at_s <= HURRIED_S + 1


def test_a_server_asks_in_the_thread_of_the_request_and_soon_says_that_the_store_is_away() -> None:
    clock, threads = ManualClock(), []

    class RecordingStore(FailingStore):
        def get(self, key: str) -> bytes:
            threads.append(threading.get_ident())
            return super().get(key)

    for outage_s, comes_back in ((2.0, True), (1e9, False)):
        began_s = clock.at_s
        inner = open_store("memory:")
        inner.put("key", b"bytes")
        failing = RecordingStore(inner, {0: "error"}, clock, outage_s=outage_s)
        store = RetryingStore(failing, RetryPolicy(5.0, clock=clock, make_call=at_once, notify=lambda text: None))
        if comes_back:
            assert store.get("key") == b"bytes"
        else:
            with pytest.raises(StoreAwayError):
                store.get("key")
        assert clock.at_s - began_s <= 6
    assert set(threads) == {threading.get_ident()}


def test_a_call_that_never_returns_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.store.retry_policy.HURRIED_S", 0.3)
    forever = threading.Event()

    class Hung(FolderStore):
        def get(self, key: str) -> bytes:
            forever.wait()
            return b""

    store = RetryingStore(Hung(tmp_path), RetryPolicy(900.0, notify=lambda text: None))
    threading.Timer(0.2, store.retry_policy.hurry).start()  # as SIGTERM does
    began_s = time.monotonic()
    with pytest.raises(StoreAwayError, match="no answer in time"):
        store.get("key")
    assert time.monotonic() - began_s < 2
    forever.set()


def test_a_begun_attempt_whose_answers_are_lost_or_late_is_begun_once() -> None:
    for number in range(6):
        for trouble in failing_store.TROUBLES:
            clock, inner = ManualClock(), open_store("memory:")
            log = CommitLog(patient(FailingStore(inner, {number: trouble}, clock), clock))
            attempt = log.begin_attempt(world_size=1, now_s=0.0)
            known = CommitLog(inner).entries()
            assert known[-1].attempt == attempt == log.attempt
            assert [entry.attempt for entry in known] == list(range(1, len(known) + 1))


@pytest.mark.parametrize(("value", "budget_s"), [("", RETRY_BUDGET_S), ("12.5", 12.5), ("0", 0.0)])
def test_the_environment_says_how_patient_a_command_is(value: str, budget_s: float) -> None:
    assert RetryPolicy.from_environment({"ASSAY_STORE_RETRY_S": value}).budget_s == budget_s


@pytest.mark.parametrize("value", ["soon", "-1", "nan"])
def test_a_patience_that_is_no_number_of_seconds_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="give seconds"):
        RetryPolicy.from_environment({"ASSAY_STORE_RETRY_S": value})


def test_who_asks_once_says_nothing_of_an_answer_that_takes_a_moment(tmp_path: Path) -> None:
    class Slow(FolderStore):
        def exists(self, key: str) -> bool:
            time.sleep(0.3)
            return super().exists(key)

    output: list[str] = []
    assert not RetryingStore(Slow(tmp_path), RetryPolicy(0.0, notify=output.append)).exists("key")
    assert output == []


def callers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "store"}


def test_calls_one_after_another_are_made_by_one_thread() -> None:
    makers: list[threading.Thread] = []
    retry_budget = RetryPolicy(0.0)
    for _ in range(50):
        retry_budget.call_with_retries("a store", lambda: makers.append(threading.current_thread()))
    assert len(set(makers)) == 1
    assert threading.current_thread() not in makers


def test_calls_at_once_wait_for_nobody() -> None:
    """As many as there are row groups under way; each is answered only when all have been asked."""
    everyone, retry_budget = threading.Barrier(8, timeout=10), RetryPolicy(0.0)
    askers = [
        threading.Thread(target=retry_budget.call_with_retries, args=("a store", everyone.wait)) for _ in range(8)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(10)
    assert not everyone.broken
    before = callers()
    retry_budget.call_with_retries("a store", lambda: None)
    assert callers() == before


def test_behind_a_call_that_hangs_others_are_answered_and_its_thread_is_idle_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("assay.store.retry_policy.HURRIED_S", 0.1)
    forever, maker = threading.Event(), list[threading.Thread]()

    def hang() -> None:
        maker.append(threading.current_thread())
        forever.wait(60)

    retry_budget = RetryPolicy(0.0)
    with pytest.raises(StoreAwayError, match="no answer in time"):
        retry_budget.call_with_retries("a store", hang)
    assert retry_budget.call_with_retries("a store", threading.current_thread) is not maker[0]
    forever.set()
    until_s = time.monotonic() + 10
    while maker[0] not in makers_of_many() and time.monotonic() < until_s:
        time.sleep(0.01)
    assert maker[0] in makers_of_many()


def makers_of_many() -> set[threading.Thread]:
    """Who makes as many calls at once as there are threads for."""
    count = len(callers())
    together, makers = threading.Barrier(count, timeout=10), set[threading.Thread]()

    def call() -> None:
        makers.add(threading.current_thread())
        together.wait()

    askers = [threading.Thread(target=RetryPolicy().call_with_retries, args=("a store", call)) for _ in range(count)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(10)
    return makers


def test_an_answer_is_not_kept_by_the_thread_that_brought_it() -> None:
    class Result:
        pass

    retained = weakref.ref(RetryPolicy(0.0).call_with_retries("a store", Result))
    until_s = time.monotonic() + 10
    while retained() is not None and time.monotonic() < until_s:
        time.sleep(0.01)
    assert retained() is None


def test_a_forked_process_makes_its_calls_in_threads_of_its_own() -> None:
    retry_budget = RetryPolicy(5.0, notify=lambda text: None)
    retry_budget.call_with_retries("a store", lambda: None)
    child = multiprocessing.get_context("fork").Process(
        target=retry_budget.call_with_retries, args=("a store", lambda: None)
    )
    child.start()
    child.join(20)
    assert child.exitcode == 0
