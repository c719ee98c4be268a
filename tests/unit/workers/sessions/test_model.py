"""Requests of a model: their order, errors, and restarts at every point, which change no bit."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from assay.base.errors import StoreError, TrainingError
from assay.distributed.ranks import Ranks
from assay.serving.sessions.request_log import RequestLog, Result
from assay.training.sessions.trainer import SessionTrainer
from assay.workers.sessions.weights import ModelStates
from forked_ranks import on_ranks
from session_requests import MODEL, SESSION, RequestedSession
from variants import slow

LAST = 9


def send_all(session: RequestedSession) -> None:
    """Two steps, a save between a pass and its update, a failed update, a save, and a third step."""
    session.create()
    session.step(1)
    session.send_pass(3)
    session.send(4, "save_weights", path="between")
    session.send(5, "optim_step", adam_params={"learning_rate": 0.01, "weight_decay": 0.1, "grad_clip_norm": 0.5})
    session.step(6, scale=3e38)
    session.send(8, "save_weights_for_sampler", path="sampler")
    session.send_pass(LAST)
    session.send(LAST + 1, "optim_step", adam_params={"learning_rate": 0.01})
    session.send(LAST + 2, "save_weights", path="end")


def outcome(session: RequestedSession) -> tuple[dict[int, bytes], dict[str, bytes]]:
    assert session.notes == []
    return session.results(), session.states("training", "sampler")


def all_at_once(ranks: Ranks, folder: Path) -> Any:
    session = RequestedSession(folder)
    send_all(session)
    session.execute_all(ranks)
    return outcome(session)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("undisturbed")
    [found] = on_ranks(1, lambda ranks: all_at_once(ranks, folder), folder)
    return found


def test_each_request_has_its_result_and_what_is_saved_is_durable(undisturbed: Any) -> None:
    results, states = undisturbed
    assert sorted(results) == list(range(LAST + 3))
    assert b"gradient_norm" in results[2] and b"so no update was made" in results[7]
    assert json.loads(results[4])["path"] == f"tinker://{MODEL}/weights/between"
    assert [key.split("/")[1] for key in sorted(states)] == ["sampler", "training", "training"]


@pytest.mark.parametrize("commit_after_s", [-1.0, *slow(1e9)], ids=["stored often", "never stored"])
def test_a_worker_that_dies_after_any_request_changes_no_bit(
    commit_after_s: float, undisturbed: Any, tmp_path: Path
) -> None:
    def killed(ranks: Ranks) -> list[Any]:
        found = []
        for number in range(1, LAST + 3):
            session = RequestedSession(tmp_path / str(number))
            send_all(session)
            executor = session.executor(ranks, commit_after_s=commit_after_s)
            for _ in range(number):
                executor.execute_next()
            session.execute_all(ranks, commit_after_s=commit_after_s)
            found.append(outcome(session))
        return found

    [found] = on_ranks(1, killed, tmp_path)
    assert all(results == undisturbed for results in found)


def test_requests_are_executed_in_the_order_of_their_numbers(undisturbed: Any, tmp_path: Path) -> None:
    def reordered(ranks: Ranks) -> Any:
        session = RequestedSession(tmp_path)
        session.create()
        session.send(2, "optim_step", adam_params={"learning_rate": 0.01})
        executor = session.executor(ranks)
        assert [executor.execute_next() for _ in range(2)] == [True, False], "request 1 is missing"
        session.send_pass(1)
        assert [executor.execute_next() for _ in range(3)] == [True, True, False]
        return session.results()

    [results] = on_ranks(1, reordered, tmp_path)
    assert results == {seq_id: undisturbed[0][seq_id] for seq_id in range(3)}


def test_a_damaged_state_is_passed_over_and_more_is_executed_again(undisturbed: Any, tmp_path: Path) -> None:
    def damaged(ranks: Ranks) -> list[str]:
        session = RequestedSession(tmp_path)
        send_all(session)
        executor = session.executor(ranks)
        for _ in range(5):
            executor.execute_next()
        key = f"session-data/{SESSION}/train/0/training/{4:019d}"
        data = session.store.get(key)
        session.store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
        session.execute_all(ranks)
        assert session.results() == undisturbed[0]
        return session.notes

    [notes] = on_ranks(1, damaged, tmp_path)
    assert len(notes) == 1 and "its body has not the digest" in notes[0]


def executed(session: RequestedSession, ranks: Ranks, *, fails_at: int | None = None) -> dict[str, bytes]:
    """What is stored once all requests are executed; one of them fails after its gradient was added."""
    executor = session.executor(ranks)

    def add_gradient(trainer: SessionTrainer, original: Callable[..., Any] = SessionTrainer._add_gradient) -> None:
        original(trainer)
        if executor.next_seq_id == fails_at:
            raise RuntimeError("out of memory")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionTrainer, "_add_gradient", add_gradient)
        while executor.execute_next():
            pass
    return session.states("training")


def test_an_unexpected_error_fails_its_request_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    def states(ranks: Ranks) -> list[bytes]:
        disturbed, plain = RequestedSession(tmp_path / "disturbed"), RequestedSession(tmp_path / "plain")
        for session in (disturbed, plain):
            session.create()
            session.step(1)
            session.step(4)
            session.send(6, "save_weights", path="end")
        disturbed.send_pass(3)
        plain.send(3, "save_weights", path="unrelated")
        found = [executed(disturbed, ranks, fails_at=3), executed(plain, ranks)]
        assert b"Internal error" in disturbed.results()[3]
        return [states[f"0/training/{6:019d}"] for states in found]

    [(disturbed, plain)] = on_ranks(1, states, tmp_path)
    assert disturbed == plain


def test_a_request_whose_result_could_not_be_stored_is_not_executed_twice(undisturbed: Any, tmp_path: Path) -> None:
    def on_a_full_disk(ranks: Ranks) -> Any:
        session = RequestedSession(tmp_path)
        send_all(session)
        executor, put_result, refused = session.executor(ranks), RequestLog.put_result, set[int]()

        def put_result_later(log: RequestLog, seq_id: int, result: Result) -> bool:
            if seq_id not in refused:
                refused.add(seq_id)
                raise StoreError("The disk is full")
            return put_result(log, seq_id, result)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RequestLog, "put_result", put_result_later)
            while len(session.results()) < LAST + 3:
                with suppress(StoreError):
                    executor.execute_next()
        return outcome(session)

    [found] = on_ranks(1, on_a_full_disk, tmp_path)
    assert found == undisturbed


def test_a_worker_whose_result_came_second_does_not_go_on_with_it(tmp_path: Path) -> None:
    def beaten(ranks: Ranks) -> list[str]:
        session = RequestedSession(tmp_path)
        session.create()
        session.step(1)
        executor = session.executor(ranks)

        def add_gradient(trainer: SessionTrainer) -> None:
            session.sessions.requests(MODEL).put_result(1, Result.of_error("the other one failed", "server"))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SessionTrainer, "_add_gradient", add_gradient)
            with pytest.raises(TrainingError, match="request 1 with another result"):
                while executor.execute_next():
                    pass
        session.execute_all(ranks)
        return [json.loads(session.results()[seq_id])["error"] for seq_id in (1, 2)]

    [(of_pass, of_update)] = on_ranks(1, beaten, tmp_path)
    assert of_pass == "the other one failed"
    assert "no forward_backward since" in of_update


def test_a_model_resumes_from_saved_weights_with_or_without_the_optimizer(tmp_path: Path) -> None:
    def resumed(ranks: Ranks) -> list[bytes]:
        session = RequestedSession(tmp_path, num_models=3)
        session.create()
        for seq_id in (1, 3):
            session.step(seq_id)
        session.send(5, "save_weights", path="half")
        session.step(6)
        session.send(8, "save_weights", path="end")
        found = []
        for number in (0, 1, 2):
            target = MODEL._replace(number=number)
            if number:
                source = f"tinker://{MODEL}/weights/half"
                session.send(0, "load_weights", target=target, path=source, optimizer=number == 1)
                session.send_pass(6, target=target)
                for seq_id in range(1, 6):
                    session.send(seq_id, "save_weights", target=target, path=f"{seq_id}")
                session.send(7, "optim_step", target=target, adam_params={"learning_rate": 0.01})
                session.send(8, "save_weights", target=target, path="end")
            session.execute_all(ranks, number=number)
            assert 8 in session.results(target), session.results(target)
            saved = ModelStates(session.store, target).get("training", 8)
            assert saved is not None and saved.num_steps == (1 if number else 3)
            found.append(saved.data)
        return found

    [(whole, with_moments, without)] = on_ranks(1, resumed, tmp_path)
    assert whole == with_moments
    assert whole != without


def test_a_name_is_replaced_only_if_the_client_says_so(tmp_path: Path) -> None:
    def saved(ranks: Ranks) -> list[bytes]:
        session = RequestedSession(tmp_path)
        session.create()
        for seq_id, overwrite in ((1, False), (2, False), (3, True)):
            session.send(seq_id, "save_weights", path="a", overwrite=overwrite)
        session.execute_all(ranks)
        return [session.results()[seq_id] for seq_id in (1, 2, 3)]

    [(first, again, replaced)] = on_ranks(1, saved, tmp_path)
    assert b"exists. Save under another name" in again
    assert first == replaced
