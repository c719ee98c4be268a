"""Batches: read whole, answered chunk by chunk, gathered into files.

created --> read (every line is checked) --> chunk: put if absent --> answered ... --> gathering --> ended
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from assay.base.clock import Clock
from assay.inference.protocol import Engine, ModelSource
from assay.records.batch import (
    BatchAnswer,
    BatchAnswered,
    BatchChunk,
    BatchCreated,
    BatchEnded,
    BatchEntry,
    BatchFailed,
    BatchFault,
    BatchGathering,
    BatchOutcome,
    BatchRead,
    BatchTaken,
)
from assay.serving.batches.batches import BatchShelf, BatchState
from assay.serving.files import FileShelf
from assay.serving.openai.inference.answers import chat_completion, embeddings, text_completion
from assay.serving.openai.inference.questions import ChatQuestion, CompletionQuestion
from assay.serving.refusal import RefusedError
from assay.serving.webhooks.outbox import Outbox
from assay.workers.batch.batch_file import (
    BatchRequest,
    Question,
    read_batch,
    requests_of,
)
from assay.workers.batch.batch_files import BatchFiles, request_id
from assay.workers.batch.chunk_processor import CannotError, Hand, ThingProblem
from assay.workers.batch.models import Models
from assay.workers.batch.read_ahead import ReadOn

CHUNK_REQUESTS = 16
BatchHand = Hand[BatchEntry, BatchState]


class BatchWork:
    """See `DeskWork`; so for all that follows."""

    cannot = "cannot_answer"

    def __init__(
        self,
        batches: BatchShelf,
        files: FileShelf,
        models: Models,
        outbox: Outbox,
        *,
        clock: Clock,
        chunk_requests: int = CHUNK_REQUESTS,
    ) -> None:
        self.shelf = batches.shelf
        self._batches = batches
        self._files = files
        self._models = models
        self._outbox = outbox
        self._clock = clock
        self._chunk_requests = chunk_requests
        self._gathered = BatchFiles(batches, files, clock)
        self._open: dict[str, ReadOn[BatchRequest]] = {}

    def wanted(self, thing_id: str, state: BatchState) -> BatchState:  # noqa: ARG002
        return state

    def taken(self, hand: BatchHand, worker: str) -> BatchTaken:
        return BatchTaken(at_s=hand.now_s(), lease=hand.lease, worker=worker)

    def wants_chunk(self, state: BatchState) -> bool:
        return state.wants_chunk and self._clock.now_s() < state.created.expires_s

    def step(self, state: BatchState, hand: BatchHand) -> None:
        if state.gathering is not None:
            self._gather(state, hand)
        elif state.cancel_asked is not None:
            _begin_gathering(hand, "cancelled")
        elif hand.now_s() >= state.created.expires_s:
            _begin_gathering(hand, "expired")
        elif self._files.find(state.created.input_file_id, state.created.project) is None:
            said = f"File {state.created.input_file_id} is gone: it was deleted, or has expired."
            raise CannotError(ThingProblem("file_not_found", said, "input_file_id"))
        elif state.read is None:
            self._read(state.created, hand)
        elif state.wants_chunk:
            number = state.num_made
            hand.put_chunk(
                self._batches.chunks,
                number,
                make=partial(self._answered, state.created, state.read, number, hand),
                note=partial(_noted, number, hand),
            )
        else:
            _begin_gathering(hand, "completed")

    def failed(self, hand: BatchHand, problem: ThingProblem) -> BatchFailed:
        fault = BatchFault(code=problem.code, message=problem.message, param=problem.param)
        return BatchFailed(at_s=hand.now_s(), lease=hand.lease, faults=(fault,))

    def close(self, thing_id: str, state: BatchState) -> None:
        assert state.ended_s is not None
        event_type, project = f"batch.{state.status}", state.created.project
        self._outbox.plan(thing_id, event_type, project=project, ended_s=state.ended_s)
        self._batches.chunks.forget(thing_id)  # its files hold them by now

    def let_go(self, thing_id: str) -> None:
        self._open.pop(thing_id, None)

    def _read(self, created: BatchCreated, hand: BatchHand) -> None:
        """Check every line; from now on the number of requests stands."""
        found = read_batch(self._requests(created))
        if found.faults:
            failed = BatchFailed(at_s=hand.now_s(), lease=hand.lease, faults=found.faults)
            hand.put(lambda _: failed)
            return
        read = BatchRead(
            at_s=hand.now_s(),
            lease=hand.lease,
            num_requests=found.num_requests,
            chunk_requests=self._chunk_requests,
        )
        hand.put(lambda now: read if now.read is None else None)

    def _answered(self, created: BatchCreated, read: BatchRead, number: int, hand: BatchHand) -> BatchChunk:
        if created.batch_id not in self._open:
            self._open[created.batch_id] = ReadOn(lambda: self._requests(created), BatchRequest)
        first = number * read.chunk_requests
        requests = self._open[created.batch_id].rows(first, min(read.chunk_requests, read.num_requests - first))
        source = ModelSource.model_validate(created.source)
        answers = tuple(
            self._answer(source, each, request_id(created.batch_id, place), hand.now_s())
            for place, each in enumerate(requests, start=first)
        )
        usages = [each.body.get("usage") or {} for each in answers]
        return BatchChunk(
            answers=answers,
            input_tokens=sum(usage.get("prompt_tokens", 0) for usage in usages),
            output_tokens=sum(usage.get("completion_tokens", 0) for usage in usages),
        )

    def _answer(self, source: ModelSource, request: BatchRequest, named: str, now_s: float) -> BatchAnswer:
        try:
            status, body = 200, self._models.ask(source, partial(_body, request.question, now_s))
        except RefusedError as error:
            status, body = error.status, error.envelope()
        return BatchAnswer(custom_id=request.custom_id, request_id=named, status=status, body=body)

    def _requests(self, created: BatchCreated) -> Iterator[BatchRequest | BatchFault]:
        return requests_of(self._files.lines(created.input_file_id), created)

    def _gather(self, state: BatchState, hand: BatchHand) -> None:
        output, errors = self._gathered.output(state), self._gathered.errors(state)
        ended = BatchEnded(at_s=hand.now_s(), lease=hand.lease, output_file_id=output, error_file_id=errors)
        hand.put(lambda _: ended)


def _begin_gathering(hand: BatchHand, outcome: BatchOutcome) -> None:
    gathering = BatchGathering(at_s=hand.now_s(), lease=hand.lease, outcome=outcome)

    def decide(now: BatchState) -> BatchEntry | None:
        is_so = (now.cancel_asked is not None) == (outcome == "cancelled")
        return gathering if now.gathering is None and is_so else None

    hand.put(decide)


def _noted(number: int, hand: BatchHand, chunk: BatchChunk) -> BatchAnswered:
    completed = sum(each.status == 200 for each in chunk.answers)
    return BatchAnswered(
        at_s=hand.now_s(),
        lease=hand.lease,
        chunk=number,
        completed=completed,
        failed=len(chunk.answers) - completed,
        input_tokens=chunk.input_tokens,
        output_tokens=chunk.output_tokens,
        **chunk.charge(),
    )


async def _body(question: Question, now_s: float, engine: Engine) -> dict[str, Any]:
    match question:
        case ChatQuestion():
            return await chat_completion(engine.stream, engine.ready, question, now_s=now_s)
        case CompletionQuestion():
            return await text_completion(engine.stream, engine.ready, question, now_s=now_s)
        case _:
            return await embeddings(engine.stream, question)
