"""Real processes, a real S3 endpoint and a real PostgreSQL, with wires between that fail as seeded plans say.

Each run ends with the undisturbed weights and a clean audit; or it leaves with exit code 75, and goes on to
them once nothing is wrong any more. SIGTERM is heeded while nothing answers.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from assay.cli.parameters import writable_ledger
from assay.evals.queue import stored_results
from assay.reporting.views.runs.run import run_view
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.ledger.writer import missed_subjects
from assay.store.objects import open_store
from assay.training.audit import audit_run
from faulty_wire import (
    LIES,
    OF_DATABASE,
    OUTAGES,
    DatabaseWire,
    HttpWire,
    Strike,
    random_strikes,
)
from integration.test_dead_ledger import server_url as server_url
from slurm_cluster import wait_until
from variants import slow, soaked

pytestmark = pytest.mark.timeout(900)

FOR_EVER_S = 3600.0
CALLS = 90
"""Of a short run to its store, about; of these the strikes are drawn."""
MESSAGES = 120
"""To its ledger."""
TRY_AGAIN = 75
SUITE = "name: held-out\nbenchmarks: [{type: classification, name: validation, chunk_items: 32}]\n"


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Assay:
    """The command, with wires to its store and its ledger."""

    def __init__(self, folder: Path, tree: dict[str, Any], s3_url: str, s3: HttpWire, database: DatabaseWire) -> None:
        self.s3, self.database, self.store_url = s3, database, s3_url
        ledger = f"postgresql://assay@127.0.0.1:{database.port}/postgres?sslmode=disable"
        self.home = Home.at(folder / "home", ledger)
        self.run_dir = self.home.folder / "r"
        self.recipe = folder / "recipe.yaml"
        self.recipe.write_text(yaml.safe_dump(tree))
        self._environment = {**os.environ, **self.home.environment(), "AWS_ENDPOINT_URL": s3.url}

    @property
    def log(self) -> CommitLog:
        """By a wire of its own."""
        return CommitLog(open_store(self.store_url))

    def start(self, *arguments: str, store_retry_s: float = 60.0) -> subprocess.Popen[str]:
        environment = {**self._environment, "ASSAY_STORE_RETRY_S": str(store_retry_s)}
        command = [sys.executable, "-m", "assay", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def train(self, *, workers: int = 1, store_retry_s: float = 60.0) -> subprocess.Popen[str]:
        """The run from its beginning, or from where it is."""
        what = ["--resume", "r"] if self.run_dir.is_dir() else [str(self.recipe), "--run-id", "r"]
        what += [] if self.run_dir.is_dir() else ["--store", self.store_url]
        return self.start("train", *what, "--workers", str(workers), store_retry_s=store_retry_s)

    def run(self, *arguments: str, store_retry_s: float = 60.0) -> Ended:
        return ended(self.start(*arguments, store_retry_s=store_retry_s))

    def heal(self) -> None:
        self.s3.heal()
        self.database.heal()


def ended(process: subprocess.Popen[str]) -> Ended:
    try:
        out, err = process.communicate(timeout=280)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Ended(process.returncode, out, err)


@contextmanager
def wired(folder: Path, tree: dict[str, Any], s3_url: str, server_url: str) -> Iterator[Assay]:
    sockets = server_url.partition("host=")[2]
    with (
        HttpWire(os.environ["AWS_ENDPOINT_URL"]) as s3,
        DatabaseWire(f"{sockets}/.s.PGSQL.5432") as database,
    ):
        yield Assay(folder, tree, s3_url, s3, database)


@pytest.fixture
def assay(tmp_path: Path, tiny_recipe_tree: dict[str, Any], s3_url: str, server_url: str) -> Iterator[Assay]:
    with wired(tmp_path, tiny_recipe_tree, s3_url, server_url) as assay:
        yield assay


@pytest.fixture
def evaluated_assay(tmp_path: Path, tiny_recipe_tree: dict[str, Any], s3_url: str, server_url: str) -> Iterator[Assay]:
    """With a worker beside training."""
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE)
    tree = {**tiny_recipe_tree, "evaluation": {"suite": str(suite), "every_steps": 10}}
    with wired(tmp_path, tree, s3_url, server_url) as assay:
        yield assay


def goes_on_to_its_end(assay: Assay, undisturbed: str) -> None:
    """Nothing is wrong any more: resume if need be; then everything is as if nothing had been."""
    assay.heal()
    if assay.log.finished() is None or not (assay.run_dir / "audit.json").is_file():
        done = ended(assay.train(workers=2))
        assert done.code == 0, done.err
    finished = assay.log.finished()
    assert finished is not None and finished.weights_digest == undisturbed
    assert audit_run(assay.home.run("r"), assay.log, weights="all").verdict == "pass"
    with writable_ledger(assay.home) as ledger:
        view = run_view(ledger, "r")
    assert view.audit is not None
    assert (view.status, view.weights_digest, view.audit.verdict) == ("succeeded", undisturbed, "pass")
    assert len(view.attempts) == len(saved_attempts(assay.run_dir))
    assert not missed_subjects(assay.home)


def heeds_sigterm(assay: Assay, training: subprocess.Popen[str]) -> Ended:
    """It leaves though nothing answers; its patience, and what it may take to leave, outlast any test."""
    training.send_signal(signal.SIGTERM)
    return ended(training)


@pytest.mark.slow
def test_a_run_survives_answers_that_lie(assay: Assay, undisturbed: str) -> None:
    assay.s3.strike(Strike(at, trouble) for at, trouble in zip((4, 9, 15, 22, 30, 38), (*LIES, "late"), strict=True))
    assay.database.strike([Strike(12, "lost"), Strike(40, "truncated"), Strike(60, "error")])
    done = ended(assay.train())
    assert done.code == 0, done.err
    goes_on_to_its_end(assay, undisturbed)


@pytest.mark.slow
def test_sigterm_is_heeded_while_neither_store_nor_ledger_answers(assay: Assay, undisturbed: str) -> None:
    assay.s3.strike([Strike(30, "hang", FOR_EVER_S)])
    training = assay.train(workers=2, store_retry_s=FOR_EVER_S)
    wait_until(lambda: assay.s3.trouble_now() is not None, "a silent store")
    assay.database.strike([Strike(0, "hang", FOR_EVER_S)])
    done = heeds_sigterm(assay, training)
    assert done.code == TRY_AGAIN, done
    assert "Everything committed is intact" in done.err
    last = saved_attempts(assay.run_dir)[-1]
    assert last.outcome == "preempted" and last.ended_s is not None
    goes_on_to_its_end(assay, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", soaked("refused", "error", "throttled"))
def test_sigterm_is_heeded_in_an_outage(assay: Assay, undisturbed: str, trouble: Any) -> None:
    assay.s3.strike([Strike(30, trouble, FOR_EVER_S)])
    training = assay.train(workers=2, store_retry_s=FOR_EVER_S)
    wait_until(lambda: assay.s3.trouble_now() is not None, "an outage")
    done = heeds_sigterm(assay, training)
    assert done.code == (0 if trouble == "throttled" else TRY_AGAIN), done
    goes_on_to_its_end(assay, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("at", [*soaked(2), 25, *soaked(60)])
@pytest.mark.parametrize("trouble", [OUTAGES[0], *soaked(*OUTAGES[1:3])])
def test_a_store_that_stays_away_is_exit_code_75_and_nothing_is_lost(
    assay: Assay, undisturbed: str, trouble: Any, at: int
) -> None:
    assay.s3.strike([Strike(at, trouble, FOR_EVER_S)])
    done = ended(assay.train(store_retry_s=3.0))
    assert done.code == TRY_AGAIN, done.err
    assert sum(line.startswith("error: ") for line in done.err.splitlines()) == 1, done.err
    audit = assay.run("runs", "audit", "r", store_retry_s=1.0)
    assert audit.code == TRY_AGAIN, audit
    goes_on_to_its_end(assay, undisturbed)


@pytest.mark.slow
def test_a_store_that_is_too_slow_for_the_commits_is_said_once(assay: Assay, undisturbed: str) -> None:
    assay.s3.strike([Strike(0, "throttled", FOR_EVER_S)])
    done = ended(assay.train())
    assert done.code == 0, done.err
    assert done.err.count(" is too slow: a commit took ") == 1, done.err
    goes_on_to_its_end(assay, undisturbed)


@pytest.mark.soak  # the random plan of make test-slow is one, too
def test_a_worker_beside_training_survives_what_training_does(evaluated_assay: Assay, undisturbed: str) -> None:
    assay = evaluated_assay
    assay.s3.strike([Strike(40 + 9 * location, trouble, 1.0) for location, trouble in enumerate((*LIES, *OUTAGES))])
    done = ended(assay.train())
    assert done.code == 0, done.err
    assert [result.step for _, result in stored_results(assay.log.store)] == [10, 20]
    goes_on_to_its_end(assay, undisturbed)
    with writable_ledger(assay.home) as ledger:
        assert [result.step for result in ledger.benchmark_results("r")] == [10, 20]


@pytest.mark.parametrize(
    "seed",
    [*slow(7), *soaked(*range(7), *range(8, 44))],
)
def test_a_run_survives_a_random_plan(seed: int, request: pytest.FixtureRequest, undisturbed: str) -> None:
    rng = random.Random(seed)
    assay: Assay = request.getfixturevalue("evaluated_assay" if seed % 4 == 3 else "assay")
    assay.s3.strike(random_strikes(rng, (*LIES, *OUTAGES), within=CALLS))
    assay.database.strike(random_strikes(rng, OF_DATABASE, within=MESSAGES))
    training = assay.train(workers=rng.choice([1, 2]), store_retry_s=rng.choice([2.0, 60.0]))
    if seed % 3 == 0:
        after = rng.randrange(20, CALLS)
        wait_until(lambda: assay.s3.num_requests > after or training.poll() is not None, "a moment for SIGTERM")
        training.send_signal(signal.SIGTERM)
    done = ended(training)
    # After its last step, and before its first, nothing needs to be committed: it ends as any command does.
    at_once = assay.log.finished() is not None or not saved_attempts(assay.run_dir)
    assert done.code in (0, TRY_AGAIN) or (seed % 3 == 0 and at_once and done.code == -signal.SIGTERM), done
    assay.database.strike(random_strikes(rng, OF_DATABASE, within=20))
    shown = assay.run("runs", "show", "r", "--json")
    assert shown.code in (0, 2, TRY_AGAIN) and (shown.code == 0) == bool(shown.out), shown
    assay.s3.strike(random_strikes(rng, (*LIES, *OUTAGES), within=30))
    audit = assay.run("runs", "audit", "r", "--json", store_retry_s=rng.choice([2.0, 60.0]))
    assert audit.code == TRY_AGAIN or json.loads(audit.out)["verdict"] in ("pass", "incomplete"), audit
    goes_on_to_its_end(assay, undisturbed)
