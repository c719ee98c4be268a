"""The real supervisor, its bookkeeping and its commit log with a ledger that fails, hangs, slows down or lies.

At every transaction, one at a time, and in random pairs with a store that does: the run ends as if nothing
had been (or with exit code 75, and the next start ends so), and once the ledger answers it holds what the
folders do.
"""

import random
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from assay.base.errors import StoreAwayError
from assay.distributed.ranks import Ranks
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.elastic.task import AttemptEnd, Orders
from assay.records.run import Attempt, Run
from assay.store.attempts import save_attempt
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.writer import LedgerWriter, missed_subjects
from assay.store.metrics.segment import SegmentWriter, segment_path
from assay.store.objects import ObjectStore, open_store
from assay.workflows.bookkeeping import Bookkeeper, writer_of
from assay.workflows.rebuild import fold_in
from clocks import ManualClock
from failing_ledger import TROUBLES, Strike, Trouble
from failing_ledger import strike as strike
from failing_store import TROUBLES as OF_STORE
from failing_store import FailingStore, patient
from failing_store import Trouble as OfStore
from ledger_rows import rows_of_folder, rows_on_record
from machine import MACHINE
from simulation.test_power_cuts import many_summaries as many_summaries
from simulation.test_power_cuts import ranks as ranks
from simulation.test_store_troubles import NodesHere, RanksHere, is_whole, run_in
from variants import slow


class MeasuredRanks(RanksHere):
    """Its metrics are folded while it trains, and again when it is done."""

    def __init__(self, run: Run, to_ledger: LedgerWriter, store: ObjectStore, orders: Orders, ranks: Ranks) -> None:
        super().__init__(store, orders, ranks)
        self._to_ledger = to_ledger
        number = orders.attempt.attempt
        path = segment_path(Path(run.run_dir), number, 0)
        self._segment = SegmentWriter(path, run_id="r", attempt=number, rank=0, clock=ManualClock())
        self._measure(1, "loss")

    def wait_for_news(self, timeout_s: float) -> None:
        """Until what there is was written down, for a moment."""
        self._to_ledger.wait(0.05)

    def end(self) -> AttemptEnd:
        """When what was measured so far is written down, and more is."""
        self.wait_for_news(0.0)
        self._measure(2, "accuracy")
        self._segment.close()
        return super().end()

    def _measure(self, step: int, name: str) -> None:
        self._segment.phase("compute")
        self._segment.log(step, {name: step / 3, "grad_norm": step / 7})
        self._segment.event(f"measured {name}")


class Scene:
    """A home with a run, whose commits are in memory."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.home = Home.at(folder)
        self.run: Run = run_in(folder / "r").model_copy(update={"store_url": "memory:here"})
        self.store: ObjectStore = open_store("memory:")
        open_store(self.run.run_dir).put("run.json", self.run.to_sealed_json().encode())
        patch.setattr(
            "assay.workflows.bookkeeping.open_store",
            lambda url, *rest: self.store if url == self.run.store_url else open_store(url, *rest),
        )

    def drive(self, ranks: Ranks, of_store: Mapping[int, OfStore]) -> None:
        """One life of the supervisor, with its books."""
        clock = ManualClock()
        store = patient(FailingStore(self.store, of_store, clock, outage_s=1e6), clock)
        with writer_of(self.home, self.run) as to_ledger:
            Supervisor(
                self.run,
                CommitLog(store),
                policy=RestartPolicy(max_restarts=0),
                observers=[Bookkeeper(self.run, to_ledger, clock)],
                clock=clock,
                nodes=NodesHere(store, ranks, partial(MeasuredRanks, self.run, to_ledger)),
                retry_policy=store.retry_policy,
            ).run(1)


def check(
    scene: Scene,
    strike: Strike,
    ranks: Ranks,
    of_ledger: Mapping[int, Trouble],
    of_store: Mapping[int, OfStore],
) -> int:
    """Drive until done; the number of transactions in the first life."""
    troubles = strike(of_ledger)
    try:
        scene.drive(ranks, of_store)
    except StoreAwayError as error:
        assert error.exit_code == 75 and of_store, "no ledger ends a run"
        scene.drive(ranks, {})
    troubles.end()
    assert is_whole(scene.store, ranks)
    assert rows_on_record(scene.home) == rows_of_folder(scene.run), (of_ledger, of_store)
    assert not missed_subjects(scene.home)
    return troubles.num_calls


@pytest.fixture
def scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    return (Scene(tmp_path / f"{number}", monkeypatch) for number in count())


AT_CALLS: list[tuple[Trouble, int]] = list(zip(TROUBLES, (0, 3, 4, 8, 8, 13, 7, 5), strict=True))


@pytest.mark.parametrize("case", [*AT_CALLS[:2], *slow(*AT_CALLS[2:])], ids=str)
def test_a_run_and_its_books_survive_a_ledger_in_trouble(
    case: tuple[Trouble, int], ranks: Ranks, scenes: Iterator[Scene], strike: Strike
) -> None:
    trouble, number = case
    check(next(scenes), strike, ranks, {number: trouble}, {})


def test_an_attempt_that_ends_while_another_process_writes_down_what_was_missed_has_ended(
    scenes: Iterator[Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = next(scenes)
    folder, record_attempt = Path(scene.run.run_dir), Ledger.record_attempt
    runs = Attempt(run_id="r", attempt=1, world_size=1, start_step=0, started_s=1.0, **MACHINE)
    ended = runs.model_copy(update={"outcome": "preempted", "ended_s": 2.0, "end_step": 0})
    save_attempt(folder, runs)

    def ends_meanwhile(ledger: Ledger, attempt: Attempt) -> None:
        monkeypatch.setattr(Ledger, "record_attempt", record_attempt)
        save_attempt(folder, ended)
        ledger.record_attempt(ended)
        ledger.record_attempt(attempt)

    with scene.home.open_ledger() as ledger:
        monkeypatch.setattr(Ledger, "record_attempt", ends_meanwhile)
        fold_in(scene.home, "r", ledger)
        assert ledger.attempts("r") == [ended]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_run_and_its_books_survive_a_ledger_in_trouble_at_every_transaction(
    trouble: Trouble, ranks: Ranks, scenes: Iterator[Scene], strike: Strike
) -> None:
    num_calls = check(next(scenes), strike, ranks, {}, {})
    assert num_calls > 10
    for number in range(num_calls):
        check(next(scenes), strike, ranks, {number: trouble}, {})


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_a_run_and_its_books_survive_a_ledger_and_a_store_in_trouble(
    seed: int, ranks: Ranks, scenes: Iterator[Scene], strike: Strike
) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        of_ledger = {rng.randrange(20): rng.choice(TROUBLES) for _ in range(rng.randint(1, 2))}
        of_store = {rng.randrange(100): rng.choice(OF_STORE) for _ in range(rng.randint(0, 2))}
        check(next(scenes), strike, ranks, of_ledger, of_store)
