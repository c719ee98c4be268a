"""The process of a worker: looks, waits, looks again; leaves at SIGTERM or Ctrl-C, and runs go on.

main thread   jobs: validated, launched, watched
courier       messages to webhooks
answering     runs of evals, chunk by chunk, with models in processes of their own
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
from assay.serving.batches.batches import BatchShelf
from assay.serving.evals.evals import EvalShelf
from assay.serving.evals.runs import EvalRunShelf
from assay.serving.files import FileShelf
from assay.serving.jobs import JobShelf
from assay.serving.retention import CheckpointKeeper, stores_of
from assay.serving.webhooks.courier import Courier
from assay.serving.webhooks.outbox import Outbox
from assay.store.home import Home
from assay.store.ledger.writer import marking
from assay.store.objects import ObjectStore, open_store
from assay.workers.engine.forks import EngineForks
from assay.workers.fine_tuning.budgets import Budgets
from assay.workers.fine_tuning.runs import RunsOfHome
from assay.workers.fine_tuning.worker import Worker


class WorkersEngines(NamedTuple):
    """Models that a worker asks."""

    most: int
    """At a time; 0: it answers and grades nothing."""
    most_bytes: int | None = None
    """Memory of all that are loaded."""


def run_worker(
    home: Home,
    launcher: Launcher,
    *,
    runs_at_once: int,
    engines: WorkersEngines,
    every_s: float,
    until_idle: bool,
    say: Callable[[str], None],
) -> None:
    """Work until told to stop; or, `until_idle`, until nothing goes on by itself."""
    if engines.most and find_spec("jsonschema") is None:
        raise ConfigError(
            "'assay worker' needs jsonschema to read the items of evals: pip install 'assay[serve]'. With "
            "'--engines 0' it grades none."
        )
    clock, store = SystemClock(), open_store(str(home.api))
    files, name = FileShelf(store, clock), f"process {os.getpid()} on {socket.gethostname()}"
    runs = RunsOfHome(home, files, launcher, clock)
    worker = Worker(
        store,
        JobShelf(store, clock),
        runs,
        name=name,
        clock=clock,
        runs_at_once=runs_at_once,
        say=say,
    )
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    courier = Courier(store, clock, name=name, listed=home.settings().webhook_hosts)
    budgets = Budgets(store, JobShelf(store, clock), runs.held, clock)
    answering = _Answering(home, store, engines, name, is_over, budgets, every_s=every_s, say=say)
    beside = [threading.Thread(target=courier.run, args=(is_over, say), name="courier")]
    if engines.most:
        beside.append(threading.Thread(target=answering.run, name="answering"))
    for thread in beside:
        thread.start()
    say(f"working at the jobs of {home.api}")
    try:
        while not is_over.is_set():
            try:
                is_busy = worker.look() or (engines.most > 0 and answering.has_something_due())
            except StoreError as error:
                say(f"{error} It is asked again.")
                is_busy = True
            if until_idle and not is_busy and not courier.has_something_due():
                break
            is_over.wait(every_s)
    finally:
        is_over.set()
        worker.leave()
        for thread in beside:
            thread.join()


class _Answering:
    """The thread that grades and answers; its models' processes end with it."""

    def __init__(
        self,
        home: Home,
        store: ObjectStore,
        engines: WorkersEngines,
        name: str,
        is_over: threading.Event,
        budgets: Budgets,
        *,
        every_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._home = home
        self._store = store
        self._engines = engines
        self._name = name
        self._is_over = is_over
        self._every_s = every_s
        self._say = say
        self._runs = EvalRunShelf(store, SystemClock())
        self._batches = BatchShelf(store, SystemClock())
        self._budgets = budgets

    def run(self) -> None:
        """Until told to stop. A worker whose thread dies here leaves: another may do better."""
        try:
            self._work()
        finally:
            self._is_over.set()

    def _work(self) -> None:
        # Here, since the reader of schemas takes a while to import, and `--engines 0` needs none.
        from assay.workers.batch.batch_work import BatchWork
        from assay.workers.batch.chunk_processor import Desk
        from assay.workers.batch.eval_work import EvalWork
        from assay.workers.batch.models import EngineModels
        from assay.workers.batch.worker import AnsweringWorker

        clock, most, most_bytes = SystemClock(), self._engines.most, self._engines.most_bytes
        start = EngineForks(self._home).start
        with closing(EngineModels(start, most=most, most_bytes=most_bytes, is_over=self._is_over)) as models:
            store, files, outbox = self._store, FileShelf(self._store, clock), Outbox(self._store, clock)
            keeper = CheckpointKeeper(stores_of(self._home), clock)
            runs = EvalWork(EvalShelf(store, clock), self._runs, files, models, outbox, keeper, clock=clock)
            batches = BatchWork(self._batches, files, models, outbox, clock=clock)
            kept: dict[str, Any] = {"is_spent": self._budgets.is_spent, "debit": self._debit}
            desks: list[Desk[Any, Any]] = [Desk(runs, clock, **kept), Desk(batches, clock, **kept)]
            worker = AnsweringWorker(store, desks, name=self._name, clock=clock, say=self._say)
            worker.run(self._is_over, self._every_s)

    def _debit(self, thing_id: str, charges: Sequence[HeldTime]) -> None:
        """Tell the ledger; one that is away is told by whoever opens it next."""
        with suppress(StoreError), marking(self._home, thing_id), self._home.open_ledger() as ledger:
            debit(ledger, thing_id, charges)

    def has_something_due(self) -> bool:
        """Whether something is to be graded or answered, by whomever."""
        return bool(self._runs.shelf.open_ids() or self._batches.shelf.open_ids())
