"""The evaluation queue of a run: workers evaluate its due commits during training, and resume dead workers.

    run's log of commits + suite -> what is due -> lease -> chunks -> results -> ledger, device time debited

A worker is a process (`assay eval work RUN`). Any number of them may work on a run, on any machines that see its
store. A worker stops when the run has finished and nothing is due any more.
"""

import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.errors import ConfigError, DamagedDataError
from assay.evals.compatibility import refuse_unfenced_graders
from assay.evals.config import Suite, read_suite
from assay.evals.items import suite_sha256
from assay.evals.queue import (
    Checkpoint,
    OnChunk,
    checkpoint_results,
    evaluate,
    is_requested,
    mark_done,
    mark_failed,
    not_evaluated,
    stored_results,
)
from assay.records.benchmark import BenchmarkResult
from assay.records.commit import Commit
from assay.records.run import Run
from assay.statistics.benchmark_items import ITEMS_FILE, save_result
from assay.store.commit_log import CommitLog
from assay.store.leased_worker import LeasedWorker, WorkUnit
from assay.store.leases import TERM_S, Lease
from assay.store.ledger.writer import LedgerWriter
from assay.store.objects import ObjectStore, open_store
from assay.training.recipe import EvaluationConfig, recipe_of
from assay.workflows.evaluation.evaluate import scorers_of_commit
from assay.workflows.evaluation.results import write_results

POLL_S = 1.0


class Queue(NamedTuple):
    """The evaluation queue of a run."""

    run: Run
    config: EvaluationConfig
    suite: Suite
    suite_sha256: str
    """SHA-256 of the suite and its files when the queue was opened."""
    store: ObjectStore
    log: CommitLog


def queue_of(run: Run, *, suite: str | None = None) -> Queue:
    """Return the queue of a run, for its recipe's suite or another one at every commit."""
    if suite is not None:
        config: EvaluationConfig | None = EvaluationConfig(suite=suite)
    else:
        config = recipe_of(run).evaluation
    if config is None:
        raise ConfigError(
            f"the recipe of run '{run.run_id}' has no evaluation. Name a suite with --suite, or put "
            "evaluation.suite into the next recipe."
        )
    path, store = Path(config.suite), open_store(run.store_url)
    read = read_suite(path)
    return Queue(run, config, read, suite_sha256(path, read), store, CommitLog(store))


def due_commits(queue: Queue) -> list[Commit]:
    """Return the commits that are due and lack results, oldest first, as far as their files exist.

    Due are those that the recipe selects, the last one, and those that somebody requested.
    """
    commits, finished = queue.log.commits(), queue.log.finished()
    requested = [
        commit
        for commit in commits
        if queue.config.is_evaluated(commit.step)
        or (finished is not None and commit.step == finished.step)
        or is_requested(queue.store, commit.step, commit.weights_digest, queue.suite_sha256)
    ]
    return not_evaluated(requested, queue.suite_sha256, queue.store)


def work(queue: Queue, writer: LedgerWriter, *, clock: Clock, follow: bool, on_chunk: OnChunk = lambda *_: None) -> int:
    """Evaluate due commits, with `follow` until the run has finished; return the number of completed checkpoints.

    A checkpoint that another worker holds is skipped until its lease shows whether that worker is alive. SIGTERM
    releases the lease and ends the process.
    """
    refuse_unfenced_graders(queue.suite)
    handler = _EvaluationHandler(queue, clock, on_chunk)
    name = f"{socket.gethostname()}-{os.getpid()}"
    # A checkpoint is evaluated in one slice, because its model is large to load.
    worker = LeasedWorker(queue.store, [handler], name=name, clock=clock, term_s=TERM_S, slice_s=math.inf)
    with exiting_on_sigterm(), worker:
        while True:
            is_last_round, before = not follow or queue.log.finished() is not None, handler.num_completed
            worker.poll()
            worker.leave()
            if handler.num_completed > before:
                record_results(queue, writer)
            due = due_commits(queue)
            if is_last_round and not due:
                return handler.num_completed
            if handler.num_completed == before:
                if not follow and not any(worker.watch.may_be_dead(_unit(commit).folder) for commit in due):
                    return handler.num_completed
                clock.sleep_s(POLL_S)


@contextmanager
def exiting_on_sigterm() -> Iterator[None]:
    """Exit by an exception on SIGTERM, so that leases are released. Only the main thread can do this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def record_results(queue: Queue, writer: LedgerWriter) -> list[BenchmarkResult]:
    """Update the run's folder and the ledger from the store: results and device time."""
    results = stored_results(queue.store)
    is_elsewhere = queue.store.url != queue.run.run_dir
    for folder, result in results:
        if is_elsewhere and not (Path(queue.run.run_dir) / folder).is_dir():
            save_result(Path(queue.run.run_dir) / folder, result, queue.store.get(f"{folder}/{ITEMS_FILE}"))
    writer.put(lambda ledger: write_results(ledger, queue.run))
    return [result for _, result in results]


def _unit(commit: Commit) -> WorkUnit:
    folder = checkpoint_results(commit.step, commit.weights_digest)
    return WorkUnit(f"{commit.step:08d}.{commit.weights_digest}", folder)


def _name_and_seed(run: Run) -> tuple[str, int]:
    if run.is_recorded():
        seed = run.recipe.get("params", {}).get("seed")
        return str(run.recipe["name"]), seed if isinstance(seed, int) else 0
    recipe = recipe_of(run)
    return recipe.name, recipe.seed


class _EvaluationHandler:
    """A `WorkHandler` of the due commits of a run."""

    def __init__(self, queue: Queue, clock: Clock, on_chunk: OnChunk) -> None:
        self._queue = queue
        self._clock = clock
        self._on_chunk = on_chunk
        self._commits: dict[str, Commit] = {}
        """By unit id."""
        self.num_completed = 0

    def due(self) -> Iterable[WorkUnit]:
        """Return the commits that are due."""
        commits = {_unit(commit): commit for commit in due_commits(self._queue)}
        self._commits = {unit.unit_id: commit for unit, commit in commits.items()}
        return commits

    def claim(self, unit: WorkUnit, lease: Lease, worker: str) -> bool:  # noqa: ARG002
        return True

    def let_go(self, unit_id: str) -> bool:  # noqa: ARG002
        return True

    def step(self, unit: WorkUnit, lease: Lease) -> None:
        """Evaluate one commit."""
        queue, commit, results = self._queue, self._commits[unit.unit_id], []
        name, seed = _name_and_seed(queue.run)
        checkpoint = Checkpoint(
            run_id=queue.run.run_id,
            candidate=name,
            seed=seed,
            step=commit.step,
            weights_digest=commit.weights_digest,
        )
        try:
            for scorer in scorers_of_commit(queue.suite, queue.config.suite, queue.run, commit, queue.store):
                result = evaluate(queue.store, checkpoint, scorer, lease, clock=self._clock, on_chunk=self._on_chunk)
                results.append(result)
                scorer.close()
            mark_done(queue.store, checkpoint, queue.suite_sha256, results)
        except DamagedDataError as error:
            # A corrupt commit can never be evaluated: it is marked as failed, with the reason.
            mark_failed(queue.store, checkpoint, queue.suite_sha256, str(error))
        self.num_completed += 1
