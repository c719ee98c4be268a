"""The real worker of the evaluation queue, and the audit, on a store that fails, hangs, slows down or lies.

On a finished run, at every call, one at a time and in random pairs: the results and the
report are those that come when nothing happens, or it is exit code 75 and the next one comes to them.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from assay.base.errors import StoreAwayError
from assay.evals.config import read_suite
from assay.evals.queue import stored_results
from assay.records.audit import AuditReport
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import ObjectStore, open_store
from assay.training.audit import audit_run
from assay.training.recipe import EvaluationConfig
from assay.workflows.audit import audit_and_record
from assay.workflows.bookkeeping import writer_of
from assay.workflows.evaluation.queue import Queue, due_commits, work
from clocks import ManualClock
from failing_ledger import TROUBLES as OF_LEDGER
from failing_ledger import Strike
from failing_ledger import Trouble as TroubleOfLedger
from failing_ledger import strike as strike
from failing_store import OUTAGE_S, TROUBLES, FailingStore, Trouble, patient
from ledger_rows import rows_of_folder, rows_on_record
from sample_project import SampleProjects
from variants import slow

SUITE = "name: s\nbenchmarks: [{type: classification, name: validation, chunk_items: 32}]\n"
ONLY_THE_LAST = 10**12
TOO_LONG_S = 1000.0
"""A little longer than anybody waits: what is asked next is answered."""
Troubles = Mapping[int, Trouble]
OfLedger = Mapping[int, TroubleOfLedger]


class Finished(NamedTuple):
    """A run that is finished, and a suite for it."""

    home: Home
    run: Run
    suite: Path

    def store(self) -> ObjectStore:
        """All that its folder holds, but for what was evaluated."""
        store, folder = open_store("memory:"), Path(self.run.run_dir)
        for part in ("log", "checkpoints"):
            for path in (folder / part).rglob("*.*"):
                store.put(path.relative_to(folder).as_posix(), path.read_bytes())
        return store

    def run_in(self, home: Path) -> Run:
        """The run, as another home has it, to which its store is a long way off."""
        folder = str(home / self.run.run_id)
        run = self.run.model_copy(update={"run_dir": folder, "store_url": "memory:"})
        open_store(folder).put("run.json", run.to_sealed_json().encode())
        return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, sample_projects: SampleProjects) -> Finished:
    folder = tmp_path_factory.mktemp("project")
    home = Home.at(sample_projects.copy_to(folder))
    (folder / "suite.yaml").write_text(SUITE)
    return Finished(home, home.run("finished"), folder / "suite.yaml")


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / f"{number}" for number in count())


def evaluates(finished: Finished, inner: ObjectStore, troubles: Troubles, outage_s: float, folder: Path) -> int:
    """One life of a worker; the number of its calls."""
    clock = ManualClock(1e9)
    failing = FailingStore(inner, troubles, clock, outage_s=outage_s)
    store = patient(failing, clock)
    config = EvaluationConfig(suite=str(finished.suite), every_steps=ONLY_THE_LAST)
    run = finished.run_in(folder)
    queue = Queue(run, config, read_suite(finished.suite), "0" * 64, store, CommitLog(store))
    with writer_of(Home.at(folder), run) as writer:
        work(queue, writer, clock=clock, follow=True)
    assert not due_commits(queue._replace(log=CommitLog(inner), store=inner))
    return failing.num_calls


def scores(store: ObjectStore) -> list[tuple[str, str, float]]:
    return [(folder, result.items_sha256, result.score.value) for folder, result in stored_results(store)]


class Undisturbed(NamedTuple):
    scores: list[tuple[str, str, float]]
    num_calls: int
    """Of the worker."""
    report: AuditReport
    num_audit_calls: int


@pytest.fixture(scope="module")
def undisturbed(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    inner = finished.store()
    calls = evaluates(finished, inner, {}, OUTAGE_S, tmp_path_factory.mktemp("calm"))
    report, audit_calls = audited(finished, {}, OUTAGE_S)
    assert report.verdict == "pass" and len(scores(inner)) == 1
    return Undisturbed(scores(inner), calls, report, audit_calls)


def audited(finished: Finished, troubles: Troubles, outage_s: float) -> tuple[AuditReport, int]:
    clock = ManualClock()
    failing = FailingStore(open_store(finished.run.run_dir), troubles, clock, outage_s=outage_s)
    return audit_run(finished.run, CommitLog(patient(failing, clock)), weights="all"), failing.num_calls


def or_try_again(work: Callable[[], object], outage_s: float) -> bool:
    """Whether it came to its end; if not, it was waited for long enough, and the exit code says so."""
    try:
        work()
    except StoreAwayError as error:
        assert error.exit_code == 75 and outage_s > OUTAGE_S
        return False
    return True


def check_worker(
    finished: Finished, undisturbed: Undisturbed, troubles: Troubles, outage_s: float, folders: Iterator[Path]
) -> None:
    inner = finished.store()
    if not or_try_again(lambda: evaluates(finished, inner, troubles, outage_s, next(folders)), outage_s):
        evaluates(finished, inner, {}, OUTAGE_S, next(folders))
    assert scores(inner) == undisturbed.scores, (troubles, outage_s)


def check_audit(finished: Finished, undisturbed: Undisturbed, troubles: Troubles, outage_s: float) -> None:
    reports: list[AuditReport] = []
    if or_try_again(lambda: reports.append(audited(finished, troubles, outage_s)[0]), outage_s):
        assert reports == [undisturbed.report], (troubles, outage_s)


@pytest.mark.parametrize("trouble", ["error", *slow(*(item for item in TROUBLES if item != "error"))])
def test_an_audit_in_trouble_says_what_it_says_otherwise(
    trouble: Trouble, finished: Finished, undisturbed: Undisturbed
) -> None:
    outage_s = TOO_LONG_S if trouble in ("error", "hang") else OUTAGE_S
    for number in range(0, undisturbed.num_audit_calls, 3):
        check_audit(finished, undisturbed, {number: trouble}, outage_s)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_worker_in_trouble_scores_what_it_scores_otherwise(
    trouble: Trouble, finished: Finished, undisturbed: Undisturbed, folders: Iterator[Path]
) -> None:
    number = random.Random(trouble).randrange(undisturbed.num_calls)
    check_worker(finished, undisturbed, {number: trouble}, OUTAGE_S, folders)


def check_books(
    finished: Finished, undisturbed: Undisturbed, strike: Strike, troubles: OfLedger, folders: Iterator[Path]
) -> int:
    """The scores and the ledger's rows of a worker, and then of an audit; the number of their transactions."""
    folder, inner = next(folders), finished.store()
    of_worker = strike(troubles)
    evaluates(finished, inner, {}, OUTAGE_S, folder)
    of_worker.end()
    assert scores(inner) == undisturbed.scores, troubles
    rows = rows_on_record(Home.at(folder))
    assert rows == rows_of_folder(finished.run_in(folder)) and len(rows["benchmark_results"]) == 1, troubles
    home = Home.at(finished.home.folder, f"sqlite:///{folder}/audits.db")
    home.open_ledger().close()
    of_audit = strike({number: "error" if item == "hang" else item for number, item in troubles.items()})
    report, _, _ = audit_and_record(home, finished.run.run_id, check_shards=True, weights="all")
    of_audit.end()
    assert report == undisturbed.report, troubles
    assert len(rows_on_record(home)["audits"]) == 1, troubles
    with home.open_ledger() as ledger:
        assert ledger.audit(finished.run.run_id) == report, troubles
    return of_worker.num_calls


@pytest.mark.parametrize("trouble", [OF_LEDGER[0], *slow(*OF_LEDGER[1:])])
def test_a_worker_and_an_audit_survive_a_ledger_in_trouble(
    trouble: TroubleOfLedger,
    finished: Finished,
    undisturbed: Undisturbed,
    strike: Strike,
    folders: Iterator[Path],
) -> None:
    check_books(finished, undisturbed, strike, {2: trouble}, folders)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trouble", OF_LEDGER)
def test_a_worker_and_an_audit_survive_a_ledger_in_trouble_at_every_transaction(
    trouble: TroubleOfLedger,
    finished: Finished,
    undisturbed: Undisturbed,
    strike: Strike,
    folders: Iterator[Path],
) -> None:
    num_calls = check_books(finished, undisturbed, strike, {}, folders)
    for number in range(num_calls):
        check_books(finished, undisturbed, strike, {number: trouble}, folders)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_worker_and_an_audit_survive_a_store_in_trouble_at_every_call(
    trouble: Trouble, finished: Finished, undisturbed: Undisturbed, folders: Iterator[Path]
) -> None:
    for outage_s in (OUTAGE_S, TOO_LONG_S) if trouble in ("error", "hang") else (OUTAGE_S,):
        for number in range(undisturbed.num_audit_calls):
            check_audit(finished, undisturbed, {number: trouble}, outage_s)
        for number in range(undisturbed.num_calls):
            check_worker(finished, undisturbed, {number: trouble}, outage_s, folders)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_a_worker_and_an_audit_survive_two_troubles_of_their_store(
    seed: int, finished: Finished, undisturbed: Undisturbed, folders: Iterator[Path]
) -> None:
    rng = random.Random(seed)

    def pair(num_calls: int) -> Troubles:
        return {rng.randrange(num_calls): rng.choice(TROUBLES) for _ in range(2)}

    for _ in range(40):
        outage_s = rng.choice([OUTAGE_S, TOO_LONG_S])
        check_audit(finished, undisturbed, pair(undisturbed.num_audit_calls), outage_s)
        check_worker(finished, undisturbed, pair(undisturbed.num_calls), outage_s, folders)
