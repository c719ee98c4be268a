"""Models of a worker that are parrots, and a worker that grades and answers with them, here and at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from assay.inference.protocol import Engine, ModelSource
from assay.serving.openai.place import Place
from assay.workers.batch.batch_work import BatchWork
from assay.workers.batch.chunk_processor import Desk
from assay.workers.batch.eval_work import EvalWork
from assay.workers.batch.worker import AnsweringWorker
from clocks import HandClock
from parrot_engine import ParrotEngine

AnswerT = TypeVar("AnswerT")


class ParrotModels:
    """Every model says what it was asked, in upper case."""

    def __init__(self, **kind: Any) -> None:
        self.engine = ParrotEngine(**kind)
        self.refuses: Exception | None = None
        """Raised in the place of an answer."""

    def ask(self, source: ModelSource, work: Callable[[Engine], Awaitable[AnswerT]]) -> AnswerT:
        if self.refuses is not None:
            raise self.refuses

        async def asked() -> AnswerT:
            return await work(self.engine)

        return asyncio.run(asked())


class SlowModels(ParrotModels):
    """Each ask takes some seconds."""

    def __init__(self, clock: HandClock, ask_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._ask_s = ask_s

    def ask(self, source: ModelSource, work: Callable[[Engine], Awaitable[AnswerT]]) -> AnswerT:
        self._clock.sleep_s(self._ask_s)
        return super().ask(source, work)


def desks_of(place: Place, models: ParrotModels, *, at_once: int) -> list[Desk[Any, Any]]:
    """All desks, with chunks of so many."""
    given = (place.files, models, place.outbox)
    runs = EvalWork(place.evals, place.eval_runs, *given, place.keeper, clock=place.clock, chunk_items=at_once)
    batches = BatchWork(place.batches, *given, clock=place.clock, chunk_requests=at_once)

    def is_spent(project: str) -> bool:
        return place.limits.why_spent(project, ()) is not None

    return [Desk(each, place.clock, is_spent=is_spent) for each in (runs, batches)]


def worker_of(place: Place, models: ParrotModels | None = None, *, at_once: int = 3) -> AnsweringWorker:
    """A worker on a server's store."""
    desks = desks_of(place, models or ParrotModels(), at_once=at_once)
    return AnsweringWorker(place.jobs.shelf.store, desks, name="w", clock=place.clock)


def work(worker: AnsweringWorker) -> None:
    """Until nothing is left."""
    while worker.look():
        pass
    worker.leave()
