"""The worker process: polls for work until SIGTERM or Ctrl-C; training runs continue without it.

main thread   jobs: validate, launch, watch
courier       webhook messages
answering     batches and eval runs, chunk by chunk, with models in processes of their own
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from typing import Any, NamedTuple

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError, StoreError
from assay.launchers.launcher import Launcher
from assay.serving.admin.debits import debit
from assay.serving.admin.spend import HeldTime
from assay.serving.batches.batches import BatchRepository
from assay.serving.evals.evals import EvalRepository
from assay.serving.evals.runs import EvalRunRepository
from assay.serving.files import FileRepository
from assay.serving.jobs import JobRepository
from assay.serving.retention import CheckpointRetention, stores_of
from assay.serving.webhooks.delivery import WebhookDelivery
from assay.serving.webhooks.outbox import Outbox
from assay.store.home import Home
from assay.store.ledger.writer import marking
from assay.store.objects import ObjectStore, open_store
from assay.workers.engine.forks import EngineForks
from assay.workers.fine_tuning.budgets import Budgets
from assay.workers.fine_tuning.runs import RunsOfHome
from assay.workers.fine_tuning.worker import Worker


class EngineSettings(NamedTuple):
    """Limits of the models that a worker loads."""

    max_models: int
    """0: the worker processes no batches and eval runs."""
    max_bytes: int | None = None
    """Memory of all loaded models."""


def run_worker(
    home: Home,
    launcher: Launcher,
    *,
    runs_at_once: int,
    engines: EngineSettings,
    interval_s: float,
    until_idle: bool,
    notify: Callable[[str], None],
) -> None:
    """Work until stopped; with `until_idle`, until no job can continue by itself."""
    if engines.max_models and find_spec("jsonschema") is None:
        raise ConfigError(
            "'assay serve worker' needs jsonschema to read the items of evals: pip install 'assay[serve]'. With "
            "'--engines 0' it processes none."
        )
    clock, store = SystemClock(), open_store(str(home.api))
    files, name = FileRepository(store, clock), f"process {os.getpid()} on {socket.gethostname()}"
    runs = RunsOfHome(home, files, launcher, clock)
    worker = Worker(
        store, JobRepository(store, clock), runs, name=name, clock=clock, runs_at_once=runs_at_once, notify=notify
    )
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    courier = WebhookDelivery(store, clock, name=name, allowed_hosts=home.settings().webhook_hosts)
    budgets = Budgets(store, JobRepository(store, clock), runs.held, clock)
    answering = _Answering(home, store, engines, name, is_over, budgets, interval_s=interval_s, notify=notify)
    threads = [threading.Thread(target=courier.run, args=(is_over, notify), name="courier")]
    if engines.max_models:
        threads.append(threading.Thread(target=answering.run, name="answering"))
    for thread in threads:
        thread.start()
    notify(f"processing jobs of {home.api}")
    try:
        while not is_over.is_set():
            try:
                is_busy = worker.poll() or (engines.max_models > 0 and answering.has_something_due())
            except StoreError as error:
                notify(f"{error} Retrying.")
                is_busy = True
            if until_idle and not is_busy and not courier.has_something_due():
                break
            is_over.wait(interval_s)
    finally:
        is_over.set()
        worker.leave()
        for thread in threads:
            thread.join()


class _Answering:
    """The thread that processes batches and eval runs; its engines end with it."""

    def __init__(
        self,
        home: Home,
        store: ObjectStore,
        engines: EngineSettings,
        name: str,
        is_over: threading.Event,
        budgets: Budgets,
        *,
        interval_s: float,
        notify: Callable[[str], None],
    ) -> None:
        self._home = home
        self._store = store
        self._engines = engines
        self._name = name
        self._is_over = is_over
        self._interval_s = interval_s
        self._notify = notify
        self._runs = EvalRunRepository(store, SystemClock())
        self._batches = BatchRepository(store, SystemClock())
        self._budgets = budgets

    def run(self) -> None:
        """Work until stopped. If the thread fails, the worker stops, since another may do better."""
        try:
            self._work()
        finally:
            self._is_over.set()

    def _work(self) -> None:
        # Imported here, because jsonschema is slow to import and not needed with `--engines 0`.
        from assay.workers.batch.batch_handler import BatchHandler
        from assay.workers.batch.chunk_processor import ChunkProcessor
        from assay.workers.batch.eval_run_handler import EvalRunHandler
        from assay.workers.batch.models import EngineModels
        from assay.workers.batch.worker import InferenceWorker

        clock, max_models, max_bytes = SystemClock(), self._engines.max_models, self._engines.max_bytes
        start = EngineForks(self._home).start
        with closing(EngineModels(start, max_models=max_models, max_bytes=max_bytes, is_over=self._is_over)) as models:
            store, files, outbox = self._store, FileRepository(self._store, clock), Outbox(self._store, clock)
            retention = CheckpointRetention(stores_of(self._home), clock)
            runs = EvalRunHandler(
                EvalRepository(store, clock), self._runs, files, models, outbox, retention, clock=clock
            )
            batches = BatchHandler(self._batches, files, models, outbox, clock=clock)
            limits: dict[str, Any] = {"is_spent": self._budgets.is_spent, "debit": self._debit}
            processors: list[ChunkProcessor[Any, Any]] = [
                ChunkProcessor(runs, clock, **limits),
                ChunkProcessor(batches, clock, **limits),
            ]
            worker = InferenceWorker(store, processors, name=self._name, clock=clock, notify=self._notify)
            worker.run(self._is_over, self._interval_s)

    def _debit(self, task_id: str, charges: Sequence[HeldTime]) -> None:
        """Update the ledger. If it is unavailable, it catches up when it is opened next."""
        with suppress(StoreError), marking(self._home, task_id), self._home.open_ledger() as ledger:
            debit(ledger, task_id, charges)

    def has_something_due(self) -> bool:
        return bool(self._runs.logs.open_ids() or self._batches.logs.open_ids())
