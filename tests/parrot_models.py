"""Models of a worker that are parrots, and a worker that grades and answers with them, here and at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from assay.inference.protocol import Engine, ModelSource
from assay.serving.openai.app_state import AppState
from assay.workers.batch.batch_handler import BatchHandler
from assay.workers.batch.chunk_processor import ChunkProcessor
from assay.workers.batch.eval_run_handler import EvalRunHandler
from assay.workers.batch.worker import InferenceWorker
from clocks import ManualClock
from parrot_engine import ParrotEngine

ResultT = TypeVar("ResultT")


class ParrotModels:
    """Every model says what it was asked, in upper case."""

    def __init__(self, **kind: Any) -> None:
        self.engine = ParrotEngine(**kind)
        self.refuses: Exception | None = None
        """Raised in the place of an answer."""

    def run(self, source: ModelSource, work: Callable[[Engine], Awaitable[ResultT]]) -> ResultT:
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

    def run(self, source: ModelSource, work: Callable[[Engine], Awaitable[ResultT]]) -> ResultT:
        self._clock.sleep_s(self._request_s)
        return super().run(source, work)


def processors_of(app: AppState, models: ParrotModels, *, at_once: int) -> list[ChunkProcessor[Any, Any]]:
    """All desks, with chunks of so many."""
    arguments = (app.files, models, app.outbox)
    runs = EvalRunHandler(app.evals, app.eval_runs, *arguments, app.retention, clock=app.clock, chunk_items=at_once)
    batches = BatchHandler(app.batches, *arguments, clock=app.clock, chunk_requests=at_once)

    def is_spent(project: str) -> bool:
        return app.limits.spent_reason(project, ()) is not None

    return [ChunkProcessor(item, app.clock, is_spent=is_spent) for item in (runs, batches)]


def worker_of(app: AppState, models: ParrotModels | None = None, *, at_once: int = 3) -> InferenceWorker:
    """A worker on a server's store."""
    processors = processors_of(app, models or ParrotModels(), at_once=at_once)
    return InferenceWorker(app.jobs.logs.store, processors, name="w", clock=app.clock)


def work(worker: InferenceWorker) -> None:
    """Until nothing is left."""
    while worker.poll():
        pass
    worker.leave()
