"""The real supervisor, its bookkeeping and its commit log with a ledger that fails, hangs, slows down or lies.

At every transaction, one at a time, and in random pairs with a store that does: the run ends as if nothing
had been (or with exit code 75, and the next start ends so), and once the ledger answers it holds what the
folders do.
"""

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from assay.base.errors import StoreAwayError
from assay.launch.bookkeeping import Bookkeeper, rebuild_run, writer_of
from assay.launch.ranks.supervisor import RestartPolicy, Supervisor
from assay.launch.rebuild import fold_in_missed
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.ledger import writer
from assay.store.ledger.database import Database
from assay.store.ledger.ledger import open_ledger
from assay.store.ledger.writer import missed_subjects
from assay.store.objects import ObjectStore, open_store
from assay.training.parallel.ranks import Ranks
from clocks import HandClock
from failing_store import TROUBLES as OF_STORE
from failing_store import FailingStore, patient
from failing_store import Trouble as OfStore
from ledger_rows import Rows, all_rows
from simulation.test_power_cuts import many_summaries as many_summaries
from simulation.test_power_cuts import ranks as ranks
from simulation.test_store_troubles import NodesHere, RanksHere, is_whole, run_in

Trouble = Literal["error", "lost", "hang", "slow", "away"]
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)
"""One transaction fails, is made though nobody hears of it, is never answered, takes a moment; or all fail from
now on."""


class Troubles:
    """What becomes of each transaction of any ledger, by its number."""

    def __init__(self, planned: Mapping[int, Trouble]) -> None:
        self.num_calls = 0
        self._planned = planned
        self._is_away = False
        self._is_over = threading.Event()

    def end(self) -> None:
        """Nothing is wrong any more; what hung is cut off."""
        self._planned, self._is_away = {}, False
        self._is_over.set()

    @contextmanager
    def around(self, transaction: AbstractContextManager[Any]) -> Iterator[Any]:
        """One transaction."""
        number, self.num_calls = self.num_calls, self.num_calls + 1
        trouble = "error" if self._is_away else self._planned.get(number)
        self._is_away |= trouble == "away"
        if trouble in ("error", "away"):
            raise StoreAwayError("ledger: error")
        if trouble == "hang":
            self._is_over.wait()
            raise StoreAwayError("ledger: no answer")
        if trouble == "slow":
            threading.Event().wait(0.01)
        with transaction as connection:
            yield connection
        if trouble == "lost":
            raise StoreAwayError("ledger: lost")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LEAVE_S", 0.2)
    monkeypatch.setattr(writer, "RETRY_S", 0.01)


@pytest.fixture
def strike(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Let troubles strike every ledger that this process opens."""
    made: list[Troubles] = []
    reading, writing = Database.reading, Database.writing

    def begin(planned: Mapping[int, Trouble]) -> Troubles:
        troubles = Troubles(planned)
        made.append(troubles)
        monkeypatch.setattr(Database, "reading", lambda each: troubles.around(reading(each)))
        monkeypatch.setattr(Database, "writing", lambda each: troubles.around(writing(each)))
        return troubles

    yield begin
    for each in made:
        each.end()


class Scene:
    """A home with a run, whose commits are in memory."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.home = Home.at(folder)
        self.run: Run = run_in(folder / "r").model_copy(update={"store_url": "memory:here"})
        self.store: ObjectStore = open_store("memory:")
        open_store(self.run.run_dir).put("run.json", self.run.to_sealed_json().encode())
        patch.setattr(
            "assay.launch.bookkeeping.open_store",
            lambda url, *rest: self.store if url == self.run.store_url else open_store(url, *rest),
        )

    def drive(self, ranks: Ranks, of_store: Mapping[int, OfStore]) -> None:
        """One life of the supervisor, with its books."""
        clock = HandClock()
        store = patient(FailingStore(self.store, of_store, clock, outage_s=1e6), clock)
        with writer_of(self.home, self.run) as to_ledger:
            Supervisor(
                self.run,
                CommitLog(store),
                policy=RestartPolicy(max_restarts=0),
                watchers=[Bookkeeper(self.run, to_ledger, clock)],
                clock=clock,
                nodes=NodesHere(store, ranks, RanksHere),
                patience=store.patience,
            ).run(1)

    def in_folders(self) -> Rows:
        """What a ledger holds that is made anew from them."""
        with open_ledger(f"sqlite:///{self.home.folder}/anew.db") as ledger:
            rebuild_run(ledger, self.run)
            return all_rows(ledger)

    def in_ledger(self) -> Rows:
        """What the ledger holds, as the next command finds it."""
        with self.home.open_ledger() as ledger:
            assert not fold_in_missed(self.home, ledger)
            return all_rows(ledger)


def check(
    scene: Scene, strike: Any, ranks: Ranks, of_ledger: Mapping[int, Trouble], of_store: Mapping[int, OfStore]
) -> int:
    """Drive until done; the number of transactions in the first life."""
    troubles: Troubles = strike(of_ledger)
    try:
        scene.drive(ranks, of_store)
    except StoreAwayError as error:
        assert error.exit_code == 75 and of_store, "no ledger ends a run"
        scene.drive(ranks, {})
    troubles.end()
    assert is_whole(scene.store, ranks)
    assert scene.in_ledger() == scene.in_folders(), (of_ledger, of_store)
    assert not missed_subjects(scene.home)
    return troubles.num_calls


@pytest.fixture
def scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    return (Scene(tmp_path / f"{number}", monkeypatch) for number in count())


@pytest.mark.parametrize(("trouble", "number"), list(zip(TROUBLES, (0, 3, 4, 7, 5), strict=True)))
def test_a_run_and_its_books_survive_a_ledger_in_trouble(
    trouble: Trouble, number: int, ranks: Ranks, scenes: Iterator[Scene], strike: Any
) -> None:
    check(next(scenes), strike, ranks, {number: trouble}, {})


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_run_and_its_books_survive_a_ledger_in_trouble_at_every_transaction(
    trouble: Trouble, ranks: Ranks, scenes: Iterator[Scene], strike: Any
) -> None:
    num_calls = check(next(scenes), strike, ranks, {}, {})
    assert num_calls > 10
    for number in range(num_calls):
        check(next(scenes), strike, ranks, {number: trouble}, {})


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_a_run_and_its_books_survive_a_ledger_and_a_store_in_trouble(
    seed: int, ranks: Ranks, scenes: Iterator[Scene], strike: Any
) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        of_ledger = {rng.randrange(20): rng.choice(TROUBLES) for _ in range(rng.randint(1, 2))}
        of_store = {rng.randrange(100): rng.choice(OF_STORE) for _ in range(rng.randint(0, 2))}
        check(next(scenes), strike, ranks, of_ledger, of_store)
