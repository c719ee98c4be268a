"""The rank processes of a worker: any number of them, killed at any request, ends on the same bits."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from assay.base.errors import DataError, TrainingError
from assay.store.leased_worker import LeasedWorker
from assay.training.sessions.trainer import SessionTrainer
from assay.workers.sessions.base import base_of
from assay.workers.sessions.handler import SessionHandler
from assay.workers.sessions.model import MAX_LOSSES
from assay.workers.sessions.rank_models import RankModels
from assay.workers.sessions.ranks import MAX_STARTS, RanksLostError, SessionRanks
from served import TALKING
from session_datums import ADAM
from session_requests import MODEL, RequestedSession

NUM_STEPS = 3
LAST = 2 * NUM_STEPS + 1
SECOND = MODEL._replace(number=1)


class KilledRanks(SessionRanks):
    """Ranks the last of which is killed before some calls."""

    def __init__(self, session: RequestedSession, world_size: int, is_due: Callable[..., bool]) -> None:
        super().__init__(session.store.url, world_size)
        self.num_kills = 0
        self._is_due = is_due
        """Receives the arguments of a call."""

    def call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_due(*args, **kwargs):
            self.num_kills += 1
            os.kill(self._processes[-1].pid or 0, signal.SIGKILL)
        return super().call(method, *args, **kwargs)


def requested(folder: Path, *, lanes: int = 8) -> RequestedSession:
    """A session with two models that make some steps, and then save their states."""
    recipe = {**TALKING, "loader": {**TALKING["loader"], "lanes": lanes}}
    session = RequestedSession(folder, num_models=2, recipe=recipe)
    for target in (MODEL, SECOND):
        session.create(target.number)
        for step in range(NUM_STEPS):
            session.step(1 + 2 * step, target=target, scale=target.number + 1.0)
        session.send(LAST, "save_weights", target=target, path="end")
    return session


def executed(session: RequestedSession, ranks: SessionRanks) -> tuple[list[dict[int, bytes]], dict[str, bytes]]:
    """Results and saved states once a worker has executed all requests."""
    handler = SessionHandler(session.tools(ranks), session.home)
    worker = LeasedWorker(session.store, [handler], name="a", clock=session.clock, term_s=20.0)
    for _ in range(50):
        worker.poll()
        if all(LAST in session.results(target) for target in (MODEL, SECOND)):
            break
    worker.leave()
    return [session.results(MODEL), session.results(SECOND)], session.states("training")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    session = requested(tmp_path_factory.mktemp("undisturbed"))
    with SessionRanks(session.store.url, 1) as ranks:
        found = executed(session, ranks)
    assert [sorted(results) for results in found[0]] == [[*range(LAST + 1)]] * 2 and len(set(found[1].values())) == 2
    return found


def test_ranks_of_another_number_after_each_kill_end_on_the_same_bits(undisturbed: Any, tmp_path: Path) -> None:
    session = requested(tmp_path)
    for world_size in (2, 5, 1, 4):
        with SessionRanks(session.store.url, world_size) as ranks:
            executor, first = session.executor(ranks, commit_after_s=-1.0), len(session.results())
            while len(session.results()) < first + 2:
                executor.execute_next()
    with SessionRanks(session.store.url, 3) as ranks:
        assert executed(session, ranks) == undisturbed
    assert session.notes == [], "requests that were executed again had the same results"


def test_a_model_with_fewer_lanes_than_ranks_uses_some_of_them(tmp_path: Path) -> None:
    found = []
    for world_size in (1, 3):
        session = requested(tmp_path / str(world_size), lanes=2)
        with SessionRanks(session.store.url, world_size) as ranks:
            found.append(executed(session, ranks))
    assert found[0] == found[1]


def calls(method: Any, *numbers: int) -> Callable[..., bool]:
    """Whether a call is one of these of a method of the trainer of the first model, counted from 1."""
    seen = iter(range(1, 1000))
    return lambda *args, **kwargs: args[:2] == (MODEL, method) and next(seen) in numbers


@pytest.mark.parametrize("method", [SessionTrainer.forward_backward, SessionTrainer.update])
def test_a_killed_rank_ends_the_others_and_the_models_are_restored(
    method: Any, undisturbed: Any, tmp_path: Path
) -> None:
    session = requested(tmp_path)
    with KilledRanks(session, 2, calls(method, 2)) as ranks:
        assert executed(session, ranks) == undisturbed
    assert ranks.num_kills == 1
    assert len(session.notes) == 1 and "rank 1 was ended by SIGKILL" in session.notes[0]


def test_a_request_that_ends_the_ranks_each_time_fails_and_leaves_other_models_as_they_are(
    undisturbed: Any, tmp_path: Path
) -> None:
    session = requested(tmp_path)
    with KilledRanks(session, 2, lambda *args, **kwargs: args[0] == MODEL and kwargs.get("seq_id") == 3) as ranks:
        [results, of_second], states = executed(session, ranks)
    assert ranks.num_kills == MAX_LOSSES
    assert b"ended the worker's processes" in results[3] and b"no forward_backward since" in results[4]
    assert of_second == undisturbed[0][1]
    assert [states[key] == undisturbed[1][key] for key in sorted(states)] == [False, True]


@pytest.fixture(params=[1, 2])
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, SessionRanks]]:
    session = requested(tmp_path)
    with SessionRanks(session.store.url, request.param) as ranks:
        ranks.call(RankModels.create, MODEL, base_of(session.base, name="tiny"))
        yield request.param, ranks


def test_an_error_of_a_request_leaves_the_ranks_as_they_are(ranks: tuple[int, SessionRanks]) -> None:
    for _ in range(2):
        with pytest.raises(DataError, match="no forward_backward since"):
            ranks[1].call(RankModels.train, MODEL, SessionTrainer.update, ADAM)


def test_an_unexpected_error_ends_ranks_that_may_wait_for_each_other(ranks: tuple[int, SessionRanks]) -> None:
    world_size, of_worker = ranks
    with pytest.raises(RuntimeError if world_size == 1 else RanksLostError):
        of_worker.call(RankModels.train, SECOND, SessionTrainer.update, ADAM)
    if world_size > 1:
        with pytest.raises(RanksLostError):
            of_worker.call(RankModels.free, MODEL.session_id)
        of_worker.start()
    of_worker.call(RankModels.free, MODEL.session_id)


class KilledAtStart(SessionRanks):
    """Ranks the last of which is killed in the first starts."""

    def _receive(self, pipes: Sequence[Connection]) -> list[Any]:
        if self._num_starts < MAX_STARTS:
            os.kill(self._processes[-1].pid or 0, signal.SIGKILL)
        return super()._receive(pipes)


def test_a_rank_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    with KilledAtStart(str(tmp_path), 2) as ranks:
        ranks.call(RankModels.free, MODEL.session_id)


def test_ranks_that_cannot_start_say_so() -> None:
    with pytest.raises(TrainingError, match="cannot be executed here: rank 0 ended with exit code 1"):
        SessionRanks("nowhere://store", 1).start()
