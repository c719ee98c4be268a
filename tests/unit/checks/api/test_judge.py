"""The judge of Tinker servers finds wrong servers, and none of its faults reaches our effects."""

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from assay.checks.api.judge import FaultVerdict, Judge
from assay.checks.api.proxy import RequestFault
from assay.serving.sessions.request_log import RequestLog
from assay.serving.tinker import results
from served import app_in
from sessions import AnsweringWorker, on_socket, tinker_server

DAY_S = 86_400.0
WRITE_DELAY_S = 0.05
LATE_S = 60.0
STRUCK = 12
"""The second update of the third loop, after two of five updates each."""


@pytest.fixture
def app(requires, tmp_path: Path) -> Any:
    requires("sdks", find_spec("tinker") is not None, "the tinker SDK is not installed")
    return app_in(tmp_path, method="supervised")


def verdicts_on(
    app: Any, worker: AnsweringWorker, *faults: RequestFault, callbacks: Mapping[str, Callable[[], None]] | None = None
) -> Iterator[FaultVerdict]:
    with (
        on_socket(tinker_server(app)) as url,
        worker.at_work(),
        Judge(url, base="tiny").sitting(callbacks) as judge,
    ):
        yield from [judge("sft", fault) for fault in faults]


@pytest.mark.parametrize(
    "faults",
    [
        (RequestFault("after", "optim_step"), RequestFault("clock ahead", "optim_step", 2)),
        pytest.param(
            (
                RequestFault("delayed", "forward_backward", 4),
                RequestFault("clock back", "forward_backward", 5, is_acknowledged=True),
            ),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_repeated_request_has_one_effect_and_a_clock_that_jumps_has_none(
    app, faults: tuple[RequestFault, RequestFault]
) -> None:
    def move_clock(by_s: float) -> None:
        app.clock.at_s += by_s

    callbacks = {"clock ahead": lambda: move_clock(DAY_S), "clock back": lambda: move_clock(-2 * DAY_S)}
    verdicts = [*verdicts_on(app, AnsweringWorker(app.sessions), *faults, callbacks=callbacks)]
    assert [item.verdict for item in verdicts] == ["held"] * 2, verdicts


@pytest.mark.slow
def test_a_server_that_does_a_request_as_often_as_it_hears_it_is_caught(app, monkeypatch) -> None:
    worker, append = AnsweringWorker(app.sessions), RequestLog.append

    def append_and_do_again(log: RequestLog, seq_id: int, kind: Any, *rest: Any, **named: Any) -> bool:
        is_new = append(log, seq_id, kind, *rest, **named)
        if not is_new and kind == "forward_backward":
            worker.num_passes[log.target] += 1
        return is_new

    monkeypatch.setattr(RequestLog, "append", append_and_do_again)
    # The second step's last pass of three: each chunk of a batch counts.
    (verdict,) = verdicts_on(app, worker, RequestFault("after", "forward_backward", 6))
    assert verdict.verdict in ("doubled", "wrong"), verdict


@pytest.mark.slow
@pytest.mark.parametrize("is_equal_at_first", [True, False])
def test_durations_are_not_compared_though_two_of_them_be_equal(app, monkeypatch, is_equal_at_first: bool) -> None:
    updated, num_updates = results.optimizer_step, count()

    def with_duration(metrics: dict[str, float]) -> Any:
        number = next(num_updates)
        # Five updates are a loop, and two loops are what a fault is compared with.
        return updated({**metrics, "duration_ms": 24.0 if is_equal_at_first and number < 10 else 24.0 + number})

    monkeypatch.setattr(results, "optimizer_step", with_duration)
    worker = AnsweringWorker(app.sessions)
    with on_socket(tinker_server(app)) as url, worker.at_work():
        judge = Judge(url, base="tiny")
        with judge.sitting() as judge_loop:
            verdict = judge_loop("sft", RequestFault("after", "optim_step"))
    assert verdict.verdict == "held", verdict
    assert [*judge.limits()] == ["sft: the metric duration_ms differs between undisturbed loops, so it is not compared"]


@pytest.mark.slow
def test_logprobs_that_differ_undisturbed_limit_what_is_seen_and_it_is_said(app, monkeypatch) -> None:
    passed, num_passes = results.forward_backward, count()

    def with_noise(logprobs: list[Any], metrics: dict[str, float]) -> Any:
        return passed([item * (1.0 + 0.02 * (next(num_passes) > 30)) for item in logprobs], metrics)

    monkeypatch.setattr(results, "forward_backward", with_noise)
    with on_socket(tinker_server(app)) as url, AnsweringWorker(app.sessions).at_work():
        judge = Judge(url, base="tiny")
        with judge.sitting() as judge_loop:
            judge_loop("sft", RequestFault("after", "optim_step"))
    [limit] = [text for text in judge.limits() if "logprobs" in text]
    assert limit.startswith("sft: logprobs differ by 2.0% between undisturbed loops") and "by less than 20% is" in limit


@pytest.mark.slow
def test_a_metric_that_depends_on_the_requests_alone_is_compared(app, monkeypatch) -> None:
    updated, append = results.optimizer_step, RequestLog.append
    num_copies = dict[str, float]()
    """By session: each loop has one, and the last of them runs."""

    def append_and_count(log: RequestLog, *rest: Any, **named: Any) -> bool:
        is_new = append(log, *rest, **named)
        session_id = log.target.session_id
        num_copies[session_id] = num_copies.get(session_id, 0.0) + (not is_new)
        return is_new

    monkeypatch.setattr(RequestLog, "append", append_and_count)
    monkeypatch.setattr(
        results, "optimizer_step", lambda metrics: updated({**metrics, "repeats": num_copies[[*num_copies][-1]]})
    )
    (verdict,) = verdicts_on(app, AnsweringWorker(app.sessions), RequestFault("after", "optim_step"))
    assert verdict.verdict == "wrong" and "repeats" in verdict.error, verdict


def test_a_server_that_acknowledges_before_it_appends_is_caught(app, monkeypatch) -> None:
    """It appends in the background, and keeps in memory what it has acknowledged, so undisturbed nobody notices."""
    append, has_request = RequestLog.append, RequestLog.has_request
    memory, updates = dict[str, Timer](), count(1)

    def append_later(log: RequestLog, seq_id: int, kind: Any, *rest: Any, **named: Any) -> bool:
        delay_s = LATE_S if kind == "optim_step" and next(updates) == STRUCK else WRITE_DELAY_S
        memory[f"{log.target}:{seq_id}"] = timer = Timer(delay_s, append, (log, seq_id, kind, *rest), named)
        timer.start()
        return True

    def die() -> None:
        for timer in memory.values():
            timer.cancel()
        memory.clear()

    monkeypatch.setattr(RequestLog, "append", append_later)
    monkeypatch.setattr(
        RequestLog, "has_request", lambda log, seq_id: f"{log.target}:{seq_id}" in memory or has_request(log, seq_id)
    )
    fault = RequestFault("kill server", "optim_step", 2, is_acknowledged=True)
    (verdict,) = verdicts_on(app, AnsweringWorker(app.sessions), fault, callbacks={"kill server": die})
    assert verdict.verdict == "error" and "no request" in verdict.error, verdict
