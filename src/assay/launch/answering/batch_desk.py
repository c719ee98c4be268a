"""Batches at a worker: read whole, answered chunk by chunk, gathered into files.

    created --> read (every line is checked) --> chunk: put if absent --> answered ... --> gathering --> ended

A chunk that is there counts, whoever put it, as with runs of evals: each request has one answer.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from assay.base.clock import Clock
from assay.base.errors import AssayError, FencedError, StoreError
from assay.launch.answering.batch_file import (
    BatchRequest,
    Question,
    read_batch,
    requests_of,
)
from assay.launch.answering.batch_files import BatchFiles, request_id
from assay.launch.answering.desk import DueThing
from assay.launch.answering.models import LeavingError, ModelNotLoadedError, Models
from assay.launch.answering.read_on import ReadOn
from assay.records.batch import (
    BatchAnswer,
    BatchAnswered,
    BatchChunk,
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
from assay.serving.engines.asks import Engine, ModelSource
from assay.serving.files import FileShelf
from assay.serving.openai.inference.answers import chat_completion, embeddings, text_completion
from assay.serving.openai.inference.questions import ChatQuestion, CompletionQuestion
from assay.serving.refusal import RefusedError
from assay.serving.webhooks.outbox import Outbox

CHUNK_REQUESTS = 16


class BatchDesk:
    """Where batches are answered."""

    kind = "batch"

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
        self._batches = batches
        self._files = files
        self._models = models
        self._outbox = outbox
        self._clock = clock
        self._chunk_requests = chunk_requests
        self._gathered = BatchFiles(batches, files, clock)
        self._open: dict[str, ReadOn[BatchRequest]] = {}

    def due(self) -> Iterator[DueThing]:
        """See `Desk`; so for all that follows."""
        for batch_id, state in self._batches.shelf.states(self._batches.shelf.open_ids()):
            if not state.has_ended:
                yield DueThing(batch_id, state.created.project)
                continue
            self.let_go(batch_id)
            assert state.ended_s is not None
            self._outbox.plan(
                batch_id, f"batch.{state.status}", project=state.created.project, ended_s=state.ended_s
            )
            self._batches.forget_answers(batch_id)
            self._batches.shelf.close(batch_id)

    def take(self, thing_id: str, lease: int, worker: str) -> bool:
        taken = BatchTaken(at_s=self._clock.now_s(), lease=lease, worker=worker)
        state = self._batches.shelf.log(thing_id).append(
            lambda now: taken if now is not None and now.lease < lease else None
        )
        return state is not None and state.lease == lease

    def step(self, thing_id: str, lease: int) -> None:
        try:
            self._step(thing_id, lease)
        except (FencedError, StoreError, LeavingError):
            raise
        except ModelNotLoadedError as error:
            self._fail(thing_id, lease, BatchFault(code=error.code, message=str(error), param="body.model"))
        except AssayError as error:
            self._fail(thing_id, lease, BatchFault(code="cannot_answer", message=str(error)))
        except Exception as error:
            logging.getLogger("assay.launch").error("%s", thing_id, exc_info=error)
            said = "Something went wrong here, which is our mistake."
            self._fail(thing_id, lease, BatchFault(code="server_error", message=said))

    def let_go(self, thing_id: str) -> None:
        self._open.pop(thing_id, None)

    def _step(self, batch_id: str, lease: int) -> None:
        state = self._batches.shelf.state(batch_id)
        assert state is not None, "it was due"
        if state.gathering is not None:
            self._gather(state, lease)
        elif state.cancel_asked is not None:
            self._begin_gathering(batch_id, lease, "cancelled")
        elif self._clock.now_s() >= state.created.expires_s:
            self._begin_gathering(batch_id, lease, "expired")
        elif self._files.find(state.created.input_file_id, state.created.project) is None:
            said = f"File {state.created.input_file_id} is gone: it was deleted, or has expired."
            self._fail(batch_id, lease, BatchFault(code="file_not_found", message=said, param="input_file_id"))
        elif state.read is None:
            self._read(state, lease)
        elif len(state.answered) < state.num_chunks:
            self._answer(state, state.read, lease)
        else:
            self._begin_gathering(batch_id, lease, "completed")

    def _read(self, state: BatchState, lease: int) -> None:
        """Check every line; from now on the number of requests stands."""
        created = state.created
        found = read_batch(requests_of(self._files.lines(created.input_file_id), created))
        if found.faults:
            self._fail(created.batch_id, lease, *found.faults)
            return
        read = BatchRead(
            at_s=self._clock.now_s(),
            lease=lease,
            num_requests=found.num_requests,
            chunk_requests=self._chunk_requests,
        )
        self._append(created.batch_id, lease, lambda now: read if now.read is None else None)

    def _answer(self, state: BatchState, read: BatchRead, lease: int) -> None:
        batch_id, number = state.created.batch_id, len(state.answered)
        chunk = self._batches.chunk(batch_id, number)
        if chunk is None:
            first = number * read.chunk_requests
            requests = self._opened(state).rows(first, min(read.chunk_requests, read.num_requests - first))
            chunk = self._batches.put_chunk(batch_id, number, self._answered(state, requests, first))
        completed = sum(each.status == 200 for each in chunk.answers)
        entry = BatchAnswered(
            at_s=self._clock.now_s(),
            lease=lease,
            chunk=number,
            completed=completed,
            failed=len(chunk.answers) - completed,
            input_tokens=chunk.input_tokens,
            output_tokens=chunk.output_tokens,
        )
        self._append(batch_id, lease, lambda now: entry if len(now.answered) == number else None)

    def _answered(self, state: BatchState, requests: list[BatchRequest], first: int) -> BatchChunk:
        created = state.created
        source = ModelSource.model_validate(created.source)
        answers = []
        for place, request in enumerate(requests, start=first):
            ask = partial(_body, request.question, self._clock.now_s())
            try:
                status, body = 200, self._models.ask(source, ask)
            except RefusedError as error:
                status, body = error.status, error.envelope()
            answers.append(
                BatchAnswer(
                    custom_id=request.custom_id,
                    request_id=request_id(created.batch_id, place),
                    status=status,
                    body=body,
                )
            )
        usages = [each.body.get("usage") or {} for each in answers]
        return BatchChunk(
            answers=tuple(answers),
            input_tokens=sum(each.get("prompt_tokens", 0) for each in usages),
            output_tokens=sum(each.get("completion_tokens", 0) for each in usages),
        )

    def _opened(self, state: BatchState) -> ReadOn[BatchRequest]:
        created = state.created
        if created.batch_id not in self._open:
            self._open[created.batch_id] = ReadOn(
                lambda: requests_of(self._files.lines(created.input_file_id), created), BatchRequest
            )
        return self._open[created.batch_id]

    def _begin_gathering(self, batch_id: str, lease: int, outcome: BatchOutcome) -> None:
        gathering = BatchGathering(at_s=self._clock.now_s(), lease=lease, outcome=outcome)

        def decide(now: BatchState) -> BatchEntry | None:
            is_so = (now.cancel_asked is not None) == (outcome == "cancelled")
            return gathering if now.gathering is None and is_so else None

        self._append(batch_id, lease, decide)

    def _gather(self, state: BatchState, lease: int) -> None:
        output, errors = self._gathered.output(state), self._gathered.errors(state)
        ended = BatchEnded(at_s=self._clock.now_s(), lease=lease, output_file_id=output, error_file_id=errors)
        self._append(state.created.batch_id, lease, lambda _: ended)

    def _fail(self, batch_id: str, lease: int, *faults: BatchFault) -> None:
        failed = BatchFailed(at_s=self._clock.now_s(), lease=lease, faults=faults)
        self._append(batch_id, lease, lambda _: failed)

    def _append(self, batch_id: str, lease: int, decide: Callable[[BatchState], BatchEntry | None]) -> None:
        """Put an entry, unless the batch is over; `FencedError` where it is another's by now."""

        def decided(now: BatchState | None) -> BatchEntry | None:
            assert now is not None
            if now.lease != lease:
                raise FencedError(f"batch {batch_id} was taken over by another worker.")
            return None if now.has_ended else decide(now)

        self._batches.shelf.log(batch_id).append(decided)


async def _body(question: Question, now_s: float, engine: Engine) -> dict[str, Any]:
    match question:
        case ChatQuestion():
            return await chat_completion(engine.ask, engine.ready, question, now_s=now_s)
        case CompletionQuestion():
            return await text_completion(engine.ask, engine.ready, question, now_s=now_s)
        case _:
            return await embeddings(engine.ask, question)
