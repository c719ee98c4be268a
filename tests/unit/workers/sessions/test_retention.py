"""What is removed of sessions: only what no client can name, and only some days after they are finished."""

from pathlib import Path
from typing import Any

import pytest

from assay.base.errors import ConfigError
from assay.distributed.ranks import Ranks
from assay.serving.sessions.sessions import CheckpointPath
from assay.store.leased_worker import LeasedWorker
from assay.workers.sessions.audit import audit_session
from assay.workers.sessions.handler import SessionHandler
from assay.workers.sessions.retention import finish_silent, remove_unnamed
from forked_ranks import on_ranks
from session_requests import MODEL, SESSION, RequestedSession

KEEP_S = 100.0
SAVED, DELETED = CheckpointPath(MODEL, "training", "kept"), CheckpointPath(MODEL, "sampler", "deleted")


def used(folder: Path, *, is_finished: bool = True) -> RequestedSession:
    """A session with weights under two names, one of which is deleted, a sampler, and a commit."""

    def work(ranks: Ranks) -> None:
        session.create()
        session.step(1)
        session.send(3, "save_weights", path="kept")
        session.send(4, "save_weights_for_sampler", path="deleted")
        session.send(5, "save_weights_for_sampler", sampling_session_seq_id=0)
        session.step(6)
        session.sample(session.sampler(0, model_index=0, seq_id=5), 1, [5, 6])
        handler = SessionHandler(session.tools(ranks), session.home)
        worker = LeasedWorker(session.store, [handler], name="a", clock=session.clock, term_s=20.0)
        while worker.poll() and handler.has_executed:
            pass
        if is_finished:
            session.sessions.finish(SESSION, "success")
        for _ in range(3):
            worker.poll()
        worker.leave()

    session = RequestedSession(folder)
    on_ranks(1, work, folder)
    return session


def data_of(session: RequestedSession) -> list[str]:
    return sorted(item.key.partition(f"{SESSION}/")[2] for item in session.store.list(f"session-data/{SESSION}/"))


def removed_after(session: RequestedSession, seconds: float) -> int:
    session.clock.at_s += seconds
    return remove_unnamed(session.sessions, finished_before_s=session.clock.now_s() - KEEP_S)


def test_a_finished_session_keeps_all_for_some_days_and_then_what_has_a_name(tmp_path: Path) -> None:
    session = used(tmp_path)
    session.sessions.delete_checkpoint(DELETED)
    before = data_of(session)
    assert removed_after(session, KEEP_S) == 0 and data_of(session) == before
    assert {name.split("/")[2] for name in before if name.startswith("train/")} == {
        "requests", "results", "training", "sampler", "captured", "commits",
    }  # fmt: skip
    assert removed_after(session, 1.0) == 1
    assert data_of(session) == [f"train/0/training/{3:019d}"]
    state = session.sessions.state(SESSION)
    assert state is not None and state.checkpoint(SAVED) is not None
    assert removed_after(session, 1.0) == 0, "it is looked at once"
    with pytest.raises(ConfigError, match="its requests were removed"):
        audit_session(session.sessions, SESSION)


def test_weights_that_are_deleted_afterwards_are_removed_then(tmp_path: Path) -> None:
    session = used(tmp_path)
    assert removed_after(session, KEEP_S + 1) == 1
    assert len(data_of(session)) == 2
    session.sessions.delete_checkpoint(DELETED)
    assert removed_after(session, 0.0) == 1
    assert data_of(session) == [f"train/0/training/{3:019d}"]


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_session_with_requests_to_execute_keeps_all(is_finished: bool, tmp_path: Path) -> None:
    session = used(tmp_path, is_finished=False)
    if is_finished:
        session.step(8)
        session.sessions.finish(SESSION, "success")
        session.sessions.delete_checkpoint(DELETED)
    before = data_of(session)
    assert removed_after(session, 2 * KEEP_S) == 0
    assert data_of(session) == before


def test_weights_that_are_saved_again_under_a_name_replace_the_earlier_ones(tmp_path: Path) -> None:
    def saved(ranks: Ranks) -> Any:
        session = RequestedSession(tmp_path)
        session.create()
        for seq_id in (1, 4):
            session.step(seq_id)
            session.send(seq_id + 2, "save_weights", path="latest", overwrite=True)
        executor = session.executor(ranks)
        while executor.execute_next():
            pass
        return [*session.states("training")]

    assert on_ranks(1, saved, tmp_path) == [[f"0/training/{6:019d}"]]


SILENT_S = 1000.0


def test_a_session_is_finished_once_its_client_was_silent_and_a_clock_that_jumps_finishes_none(tmp_path: Path) -> None:
    session = RequestedSession(tmp_path, num_models=0)
    heard = dict[str, float]()

    def is_finished(after_s: float) -> bool:
        session.clock.at_s += after_s
        nonlocal heard
        heard = finish_silent(session.sessions, heard, heard_before_s=session.clock.now_s() - SILENT_S)
        state = session.sessions.state(SESSION)
        assert state is not None
        return state.finished is not None

    assert not any(is_finished(after_s) for after_s in (2 * SILENT_S, SILENT_S)), "no sign was recorded until now"
    for _ in range(3):  # a sign before each look, and then the clock jumps
        session.sessions.note_heard(SESSION)
        assert not is_finished(10 * SILENT_S)
    session.sessions.note_heard(SESSION)
    assert [is_finished(SILENT_S / 2) for _ in range(3)] == [False, False, True]
    state = session.sessions.state(SESSION)
    assert state is not None and state.finished is not None and state.finished.status == "silent"
    assert heard == {}
