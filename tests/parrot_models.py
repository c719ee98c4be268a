"""Models of a worker that are parrots, and a worker that grades and answers with them, here and at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from assay.inference.protocol import ModelSource
from assay.serving.openai.app_state import AppState
from assay.store.leased_worker import LeasedWorker
from assay.workers.batch.batch_handler import BatchHandler
from assay.workers.batch.eval_run_handler import EvalRunHandler
from clocks import ManualClock
from parrot_engine import ParrotEngine

ResultT = TypeVar("ResultT")


class ParrotModels:
    """Every model says what it was engines, in upper case."""

    def __init__(self, **kind: Any) -> None:
        self.engine = ParrotEngine(**kind)
        self.refuses: Exception | None = None
        """Raised in the place of an answer."""

    def run(self, source: ModelSource, work: Callable[[Any], Awaitable[ResultT]]) -> ResultT:
        if self.refuses is not None:
            raise self.refuses

        async def run_once() -> ResultT:
            return await work(self.engine)

        return asyncio.run(run_once())


class SlowModels(ParrotModels):
    """Each ask takes some seconds."""

    def __init__(self, clock: ManualClock, request_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._request_s = request_s

    def run(self, source: ModelSource, work: Callable[[Any], Awaitable[ResultT]]) -> ResultT:
        self._clock.sleep_s(self._request_s)
        return super().run(source, work)


def worker_of(app: AppState, models: ParrotModels | None = None, *, at_once: int = 3) -> LeasedWorker:
    """A worker on a server's store, with chunks of so many."""

    def is_spent(project: str) -> bool:
        return app.limits.spent_reason(project, ()) is not None

    engines: Any = models or ParrotModels()
    limits: Any = {"clock": app.clock, "is_spent": is_spent}
    runs = EvalRunHandler(
        app.evals, app.eval_runs, app.files, engines, app.outbox, app.retention, chunk_items=at_once, **limits
    )
    batches = BatchHandler(app.batches, app.files, engines, app.outbox, chunk_requests=at_once, **limits)
    return LeasedWorker(app.jobs.store, [runs, batches], name="w", clock=app.clock, slice_s=20.0)


def work(worker: LeasedWorker) -> None:
    """Until nothing is left."""
    while worker.poll():
        pass
    worker.leave()
