"""Sessions under leases: who is due, what a worker that leaves stores, and that a finished session is closed."""

from pathlib import Path
from typing import Any

from assay.distributed.ranks import Ranks
from assay.store.leased_worker import LeasedWorker
from assay.workers.sessions.handler import IDLE_S, SessionHandler
from forked_ranks import on_ranks
from session_requests import MODEL, SESSION, RequestedSession


def worker_of(session: RequestedSession, ranks: Ranks, name: str = "a") -> tuple[LeasedWorker, SessionHandler]:
    handler = SessionHandler(session.tools(ranks))
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
