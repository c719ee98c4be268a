"""The worker process: polls for work until SIGTERM or Ctrl-C; training runs continue without it.

main thread   jobs: validate, launch, watch
courier       webhook messages
answering     batches and eval runs, chunk by chunk, with models in processes of their own
"""

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.util import find_spec

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError, StoreError
from assay.launchers.launcher import Launcher
from assay.serving.admin.spend import debit_at_once
from assay.serving.batches.batches import BatchRepository
from assay.serving.evals.evals import EvalRepository
from assay.serving.evals.runs import EvalRunRepository
from assay.serving.files import FileRepository
from assay.serving.jobs import JobRepository
from assay.serving.retention import CheckpointRetention, stores_of
from assay.serving.webhooks.delivery import POLL_S, WebhookDelivery
from assay.serving.webhooks.outbox import Outbox
from assay.store.home import Home
from assay.store.leased_worker import LeasedWorker
from assay.store.objects import ObjectStore, open_store
from assay.workers.batch.metrics import serving_metrics
from assay.workers.engine.forks import EngineForks
from assay.workers.fine_tuning.budgets import Budgets
from assay.workers.fine_tuning.runs import RunsOfHome
from assay.workers.fine_tuning.worker import JobHandler

SLICE_S = 20.0
"""How long a batch or an eval run is processed while others wait, so that long ones do not block other projects."""


def run_worker(
    home: Home,
    launcher: Launcher,
    *,
    runs_at_once: int,
    max_models: int,
    max_bytes: int | None,
    interval_s: float,
    until_idle: bool,
    metrics_address: str | None,
    notify: Callable[[str], None],
) -> None:
    """Work until stopped; with `until_idle`, until no job can continue by itself.

    `max_models`: models loaded at once; 0 leaves batches and eval runs to other workers. `max_bytes`: memory of all
    loaded models. `metrics_address`: where to serve health and metrics; None: nowhere.
    """
    if max_models and find_spec("jsonschema") is None:
        raise ConfigError(
            "'assay serve worker' needs jsonschema to read the items of evals: pip install 'assay[serve]'. With "
            "'--engines 0' it processes none."
        )
    clock, store = SystemClock(), open_store(str(home.api))
    files, name = FileRepository(store, clock), f"process {os.getpid()} on {socket.gethostname()}"
    jobs, runs = JobRepository(store, clock), RunsOfHome(home, files, launcher, clock)
    handler = JobHandler(store, jobs, runs, name=name, clock=clock, runs_at_once=runs_at_once, notify=notify)
    worker = LeasedWorker(store, [handler], name=name, clock=clock, notify=notify)
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    delivery = WebhookDelivery(store, clock, allowed_hosts=home.settings().webhook_hosts)
    courier = LeasedWorker(store, [delivery], name=name, clock=clock, notify=notify)
    threads = [threading.Thread(target=partial(courier.run, is_over, POLL_S, of="webhooks"), name="courier")]
    loops = {"jobs": worker, "webhooks": courier}
    if max_models:
        is_spent = Budgets(store, JobRepository(store, clock), runs.held, clock).is_spent
        arguments = (home, store, name, is_over, is_spent, max_models, max_bytes, loops)
        options = {"interval_s": interval_s, "notify": notify}
        threads.append(threading.Thread(target=_process_tasks, args=arguments, kwargs=options, name="answering"))
    tasks = (EvalRunRepository(store, clock), BatchRepository(store, clock)) if max_models else ()
    with serving_metrics(home, store, metrics_address, loops, notify):
        for thread in threads:
            thread.start()
        notify(f"processing jobs of {home.api}")
        try:
            while not is_over.is_set():
                try:
                    worker.poll()
                    is_busy = handler.is_busy or any(repository.open_ids() for repository in tasks)
                except StoreError as error:
                    notify(f"{error} Retrying.")
                    is_busy = True
                if until_idle and not is_busy and not delivery.has_something_due():
                    break
                is_over.wait(interval_s)
        finally:
            is_over.set()
            worker.leave()
            handler.deregister()
            for thread in threads:
                thread.join()


def _process_tasks(
    home: Home,
    store: ObjectStore,
    name: str,
    is_over: threading.Event,
    is_spent: Callable[[str], bool],
    max_models: int,
    max_bytes: int | None,
    loops: dict[str, LeasedWorker],
    *,
    interval_s: float,
    notify: Callable[[str], None],
) -> None:
    """Process batches and eval runs until stopped; the engines end with it.

    If this fails, the worker stops, since another may do better.
    """
    # Imported here, because jsonschema is slow to import and not needed with `--engines 0`.
    from assay.workers.batch.batch_handler import BatchHandler
    from assay.workers.batch.eval_run_handler import EvalRunHandler
    from assay.workers.batch.models import EngineModels

    clock, start, debited = SystemClock(), EngineForks(home).start, partial(debit_at_once, home)
    try:
        with closing(EngineModels(start, max_models=max_models, max_bytes=max_bytes, is_over=is_over)) as models:
            tools = (FileRepository(store, clock), models, Outbox(store, clock))
            evals, runs = EvalRepository(store, clock), EvalRunRepository(store, clock)
            retention = CheckpointRetention(stores_of(home), clock)
            handlers = (
                EvalRunHandler(evals, runs, *tools, retention, clock=clock, is_spent=is_spent, debit=debited),
                BatchHandler(BatchRepository(store, clock), *tools, clock=clock, is_spent=is_spent, debit=debited),
            )
            worker = LeasedWorker(store, handlers, name=name, clock=clock, slice_s=SLICE_S, notify=notify)
            loops["evals and batches"] = worker
            worker.run(is_over, interval_s, of="evals and batches")
    finally:
        is_over.set()
