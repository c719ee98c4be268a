"""Sessions under leases: who is due, what a worker that leaves stores, and that a finished session is closed."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from assay.base.digest import canonical_json
from assay.base.errors import StoreError
from assay.distributed.ranks import Ranks
from assay.records.session import SessionCreated, SessionModel
from assay.serving.admin.projects import ProjectRepository
from assay.serving.jobs import JobRepository
from assay.serving.sessions.request_log import JSON, Result, TargetId
from assay.store.leased_worker import LeasedWorker
from assay.workers.fine_tuning.budgets import Budgets
from assay.workers.sessions.handler import IDLE_S, SessionHandler
from assay.workers.sessions.rank_models import OwnModels, RankModels
from assay.workers.sessions.ranks import RanksLostError
from forked_ranks import on_ranks
from session_requests import MODEL, SESSION, RequestedSession


def worker_of(session: RequestedSession, ranks: Ranks, name: str = "a") -> tuple[LeasedWorker, SessionHandler]:
    handler = SessionHandler(session.tools(ranks), session.home)
    return LeasedWorker(session.store, [handler], name=name, clock=session.clock, term_s=20.0), handler


def test_a_session_is_held_while_it_is_used_stored_when_it_is_idle_and_closed_when_it_is_finished(
    tmp_path: Path,
) -> None:
    def served(ranks: Ranks) -> list[Any]:
        session = RequestedSession(tmp_path, num_models=2)
        for number in (0, 1):
            session.create(number)
            session.step(1, target=MODEL._replace(number=number))
        worker, handler = worker_of(session, ranks)
        seen: list[Any] = []
        while worker.poll() and handler.has_executed:
            assert worker.num_held == 1
        seen.append([len(session.results(MODEL._replace(number=number))) for number in (0, 1)])
        session.clock.at_s += IDLE_S + 1
        worker.poll()
        seen.append((worker.num_held, sorted(session.states("commits"))))
        session.step(3)
        worker.poll()
        other, _ = worker_of(session, ranks, "b")
        other.poll()
        seen.append((worker.num_held, other.num_held))
        session.sessions.finish(SESSION, "success")
        for _ in range(4):
            worker.poll()
        seen.append((worker.num_held, session.sessions.is_open(SESSION), len(session.results())))
        return seen

    [(results, idle, held, finished)] = on_ranks(1, served, tmp_path)
    assert results == [3, 3]
    assert idle == (0, [f"{number}/commits/{3:019d}" for number in (0, 1)])
    assert held == (1, 0), "a second worker leaves it alone"
    assert finished == (0, False, 5)


def test_models_beside_each_other_have_the_bits_that_they_have_alone(tmp_path: Path) -> None:
    def send_requests(session: RequestedSession, number: int) -> None:
        session.create(number)
        for seq_id in range(1, 6, 2):
            session.step(seq_id, target=MODEL._replace(number=number), scale=number + 1.0)

    def served(ranks: Ranks) -> list[Any]:
        together = RequestedSession(tmp_path / "together", num_models=3)
        for number in range(3):
            send_requests(together, number)
        worker, handler = worker_of(together, ranks)
        while worker.poll() and handler.has_executed:
            pass
        worker.leave()
        found = [together.states("commits")]
        for number in range(3):
            alone = RequestedSession(tmp_path / str(number), num_models=3)
            send_requests(alone, number)
            executor = alone.executor(ranks, number=number)
            while executor.execute_next():
                pass
            executor.commit()
            found.append(alone.states("commits"))
        return found

    [(together, *alone)] = on_ranks(1, served, tmp_path)
    assert together == {key: state for states in alone for key, state in states.items()}
    assert len(set(together.values())) == 3


def test_a_session_that_cannot_be_restored_is_let_go_and_waits(tmp_path: Path) -> None:
    def served(ranks: Ranks) -> list[Any]:
        session = RequestedSession(tmp_path, num_models=2)
        worker, _ = worker_of(session, ranks)
        for number in (0, 1):
            session.create(number)
        worker.poll()
        worker.leave()
        for number in (0, 1):
            session.step(1, target=MODEL._replace(number=number))
        damaged = f"session-data/{SESSION}/train/0/commits/{1:019d}"
        data = session.store.get(damaged)
        session.store.put(damaged, data.replace(b'"next_seq_id":1', b'"next_seq_id":"x"'))
        session.store.put(f"session-data/{SESSION}/train/0/results/{'0' * 16}/000", b"{}\n")
        worker, _ = worker_of(session, ranks)
        before = len(session.results(MODEL._replace(number=1)))
        for _ in range(3):
            worker.poll()
        return [session.notes, before, worker.num_held]

    [(notes, before, held)] = on_ranks(1, served, tmp_path)
    assert any("waits for 60 s" in note for note in notes), notes
    assert before == 1 and held == 0


def test_a_worker_that_was_replaced_lets_a_session_go(tmp_path: Path) -> None:
    def served(ranks: Ranks) -> list[int]:
        session = RequestedSession(tmp_path)
        session.create()
        worker, _ = worker_of(session, ranks)
        worker.poll()
        session.store.put(f"session-data/{SESSION}/lease-0002.json", b"{}")
        session.step(1)
        worker.poll()
        return [worker.num_held, len(session.results())]

    [found] = on_ranks(1, served, tmp_path)
    assert found == [0, 1]


def test_a_session_is_executed_although_the_store_failed_when_it_was_taken(tmp_path: Path) -> None:
    def served(ranks: Ranks) -> list[int]:
        session = RequestedSession(tmp_path)
        session.create()
        worker, _ = worker_of(session, ranks)

        def fail(session_id: str, *, before: float) -> bool:
            del vars(session.sessions)["charge_killed"]
            raise StoreError(f"{session_id} before {before}: the store is away.")

        vars(session.sessions)["charge_killed"] = fail
        with pytest.raises(StoreError):
            worker.poll()
        for _ in range(2):
            worker.poll()
        return [worker.num_held, len(session.results())]

    assert on_ranks(1, served, tmp_path) == [[1, 1]]


class SlowModels(OwnModels):
    """Models each of whose passes and updates takes a second."""

    def __init__(self, session: RequestedSession, ranks: Ranks) -> None:
        super().__init__(session.sessions, ranks)
        self._session = session
        self.served: list[str] = []
        """Sessions, in the order in which their requests were executed."""
        self.ends: dict[int, Callable[[], None]] = {}
        """Called at the end of a pass or update, by its number from 1."""

    def call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        if method is RankModels.train:
            self._session.clock.at_s += 1.0
            self.served.append(args[0].session_id)
            self.ends.get(len(self.served), lambda: None)()
        return super().call(method, *args, **kwargs)


def add_session(session: RequestedSession, number: int, *, project: str, num_models: int) -> str:
    """Add a session whose models make three steps each."""
    session_id = f"session-{number:024d}"
    session.sessions.put(
        SessionCreated(session_id=session_id, project=project, at_s=0.0, key_id="", sdk_version="0.38.0")
    )
    for index in range(num_models):
        model = SessionModel(at_s=0.0, model_index=index, base_model="tiny", base=session.base, lora_rank=None)
        session.sessions.add_model(session_id, model)
        target = TargetId(session_id, "train", index)
        body = {"session_id": session_id, "model_seq_id": index, "base_model": "tiny", "type": "create_model"}
        session.sessions.requests(target).append(0, "create_model", JSON, canonical_json(body).encode(), now_s=0.0)
        for seq_id in (1, 3, 5):
            session.step(seq_id, target=target)
    return session_id


def test_a_project_with_one_session_waits_for_one_request_of_another_project_with_many(tmp_path: Path) -> None:
    def served(ranks: Ranks) -> list[bool]:
        session = RequestedSession(tmp_path, num_models=0)
        for number in range(1, 4):
            add_session(session, number, project="many", num_models=2)
        only = add_session(session, 4, project="one", num_models=1)
        models = SlowModels(session, ranks)
        handler = SessionHandler(session.tools(models), session.home)
        worker = LeasedWorker(session.store, [handler], name="a", clock=session.clock, term_s=1e9)
        while worker.poll() and handler.has_executed:
            pass
        return [session_id == only for session_id in models.served]

    [is_only] = on_ranks(1, served, tmp_path)
    assert len(is_only) == 6 * 7 and sum(is_only) == 6
    until_done = is_only[: len(is_only) - is_only[::-1].index(True)]
    assert all(first != second for first, second in pairwise(until_done)), until_done


def test_device_time_is_charged_and_a_project_over_its_limit_waits_with_its_models_stored(tmp_path: Path) -> None:
    def served(ranks: Ranks) -> list[Any]:
        session = RequestedSession(tmp_path)
        session.create()
        for seq_id in range(1, 181, 2):
            session.step(seq_id)
        projects, store = ProjectRepository(session.store, session.clock), session.store
        projects.ensure("p", by="me")
        budgets = Budgets(store, JobRepository(store, session.clock), lambda run_id: (), session.clock)
        models = SlowModels(session, ranks)
        handler = SessionHandler(session.tools(models), session.home, num_devices=2, is_spent=budgets.is_spent)
        worker = LeasedWorker(store, [handler], name="a", clock=session.clock, term_s=1e9)
        found: list[Any] = []
        for limit_s in (200.0, None):
            projects.limit("p", None if limit_s is None else limit_s / 3600, by="me")
            while worker.poll() and handler.has_executed:
                pass
            worker.poll()
            state = session.sessions.state(SESSION)
            assert state is not None
            found.append((len(models.served), worker.num_held, [charge.device_s for charge in state.charges]))
            found.append(sorted(session.states("commits"))[-1:])
        worker.leave()
        state = session.sessions.state(SESSION)
        assert state is not None
        charged = [(charge.lease, charge.device_s) for charge in state.charges]
        with session.home.open_ledger() as ledger:
            held = [(held.attempt, held.held_s) for held in ledger.phase_seconds(SESSION)]
            ends = [(attempt.outcome, attempt.reason.partition(";")[0]) for attempt in ledger.attempts(SESSION)]
        return [*found, len(session.results()), charged, held, ends]

    [(spent, stored, raised, _, num_results, charges, held, ends)] = on_ranks(1, served, tmp_path)
    assert spent == (120, 0, [240.0]), "two devices for 120 s: the charge of the first minute is below the limit"
    assert stored == [f"0/commits/{121:019d}"]
    assert raised[0] == 180 and num_results == 181
    assert charges == held == [(1, 240.0), (2, 120.0)]
    assert ends == [("preempted", "project 'p' is over its limit"), ("preempted", "the worker left")]


class Killed(BaseException):
    """What stands for SIGKILL."""


def killed_worker(session: RequestedSession, ranks: Ranks, *, num_trained: int) -> None:
    """Execute requests until the end of a pass or update whose result is not stored, one heartbeat before it."""
    models = SlowModels(session, ranks)
    handler = SessionHandler(session.tools(models), session.home, num_devices=2)
    worker = LeasedWorker(session.store, [handler], name="a", clock=session.clock)

    def kill() -> None:
        [held] = worker._held.values()
        held.lease.beat()
        vars(held.lease)["beat"] = lambda release=False: None
        raise Killed

    models.ends[num_trained] = kill
    with pytest.raises(Killed):
        while True:
            worker.poll()


def times_of(session: RequestedSession) -> list[tuple[int, float, float]]:
    """Lease, device time, and what of it was redone."""
    state = session.sessions.state(SESSION)
    assert state is not None
    return [(charge.lease, charge.device_s, charge.redone_s) for charge in state.charges]


def test_device_time_of_a_killed_worker_is_charged_and_what_is_executed_again_is_on_record(tmp_path: Path) -> None:
    def served(ranks: Ranks) -> list[Any]:
        session = RequestedSession(tmp_path)
        session.create()
        for seq_id in (1, 3):
            session.step(seq_id)
        killed_worker(session, ranks, num_trained=4)
        found: list[Any] = [times_of(session)]
        handler = SessionHandler(session.tools(SlowModels(session, ranks)), session.home, num_devices=3)
        worker = LeasedWorker(session.store, [handler], name="b", clock=session.clock)
        while len(session.results()) < 5:
            worker.poll()
            session.clock.at_s += 0.0 if worker.num_held else 5.0
        found.append(times_of(session))
        worker.leave()
        with session.home.open_ledger() as ledger:
            return [*found, times_of(session), [part.seconds for part in ledger.training_seconds(SESSION)]]

    [(before, charged, after, seconds)] = on_ranks(1, served, tmp_path)
    assert before == []
    assert charged == [(1, 8.0, 2.0)], "three that ended, and one that did not, on two devices"
    assert after == [(1, 8.0, 2.0), (2, 12.0, 9.0)], "three again, and one for the first time, on three devices"
    assert seconds == [{"compute": 6.0, "lost": 2.0}, {"compute": 3.0, "lost": 9.0}], "as the ledger has it"


def test_device_time_of_a_killed_worker_is_charged_if_no_other_executes_the_session(tmp_path: Path) -> None:
    def served(ranks: Ranks) -> list[Any]:
        session = RequestedSession(tmp_path)
        session.create()
        session.step(1)
        killed_worker(session, ranks, num_trained=2)
        session.sessions.requests(MODEL).put_result(2, Result.of_error("It is over.", "server"))
        session.sessions.finish(SESSION, "success")
        worker, _ = worker_of(session, ranks)
        worker.poll()
        return [times_of(session), session.sessions.is_open(SESSION), worker.num_held]

    assert on_ranks(1, served, tmp_path) == [[[(1, 4.0, 2.0)], False, 0]]


def test_a_step_that_ends_with_a_rank_is_charged_as_redone(tmp_path: Path) -> None:
    def served(ranks: Ranks) -> list[tuple[int, float, float]]:
        session = RequestedSession(tmp_path)
        session.create()
        session.step(1)
        models = SlowModels(session, ranks)

        def lose_rank() -> None:
            raise RanksLostError("rank 1 was ended by SIGKILL.")

        models.ends[2] = lose_rank
        handler = SessionHandler(session.tools(models), session.home)
        worker = LeasedWorker(session.store, [handler], name="a", clock=session.clock)
        while len(session.results()) < 3:
            worker.poll()
        worker.leave()
        return times_of(session)

    assert on_ranks(1, served, tmp_path) == [[(1, 4.0, 2.0)]], "one was lost, one was executed again"
