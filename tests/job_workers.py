"""Workers on jobs, with runs that are simulated."""

from collections.abc import Callable
from typing import Any

from assay.base.clock import Clock
from assay.serving.jobs import JobRepository
from assay.store.leased_worker import LeasedWorker
from assay.store.objects import ObjectStore
from assay.workers.fine_tuning.runs import RunsOfHome
from assay.workers.fine_tuning.worker import JobHandler


def job_worker(
    store: ObjectStore,
    jobs: JobRepository,
    runs: RunsOfHome,
    *,
    name: str,
    clock: Clock,
    notify: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> LeasedWorker:
    """A worker on all jobs; `options` are the handler's."""
    handler = JobHandler(store, jobs, runs, name=name, clock=clock, notify=notify, **options)
    return LeasedWorker(store, [handler], name=name, clock=clock, notify=notify)


def handler_of(worker: LeasedWorker) -> JobHandler:
    """What it does with jobs."""
    (handler,) = worker._handlers
    assert isinstance(handler, JobHandler)
    return handler
