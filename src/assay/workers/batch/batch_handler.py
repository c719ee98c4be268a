"""Processes batches: read the input, respond chunk by chunk, write the output files.

created --> read (all lines validated) --> chunk: put if absent --> logged ... --> gathering --> ended
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from assay.base.clock import Clock
from assay.inference.protocol import Engine, ModelSource
from assay.records.batch import (
    BatchAcquired,
    BatchChunk,
    BatchChunkCompleted,
    BatchCreated,
    BatchEnded,
    BatchEntry,
    BatchFailed,
    BatchFault,
    BatchGathering,
    BatchOutcome,
    BatchRead,
    BatchResponse,
)
from assay.serving.api_error import ApiError
from assay.serving.batches.batches import BatchRepository, BatchState
from assay.serving.files import FileRepository
from assay.serving.openai.inference.request_bodies import ChatRequest, CompletionRequest
from assay.serving.openai.inference.responses import chat_completion, embeddings, text_completion
from assay.serving.webhooks.outbox import Outbox
from assay.workers.batch.batch_input import BatchRequest, RequestBody, read_batch, requests_of
from assay.workers.batch.batch_output import BatchOutput, request_id
from assay.workers.batch.chunk_processor import TaskFailedError, TaskFailure, TaskWriter
from assay.workers.batch.models import Models
from assay.workers.batch.read_ahead import ReadAhead

CHUNK_REQUESTS = 16
BatchWriter = TaskWriter[BatchEntry, BatchState]


class BatchHandler:
    """See `TaskHandler` for the methods."""

    cannot = "cannot_answer"

    def __init__(
        self,
        batches: BatchRepository,
        files: FileRepository,
        models: Models,
        outbox: Outbox,
        *,
        clock: Clock,
        chunk_requests: int = CHUNK_REQUESTS,
    ) -> None:
        self.logs = batches.logs
        self._batches = batches
        self._files = files
        self._models = models
        self._outbox = outbox
        self._clock = clock
        self._chunk_requests = chunk_requests
        self._gathered = BatchOutput(batches, files, clock)
        self._open: dict[str, ReadAhead[BatchRequest]] = {}

    def refresh(self, task_id: str, state: BatchState) -> BatchState:  # noqa: ARG002
        return state

    def claim_entry(self, writer: BatchWriter, worker: str) -> BatchAcquired:
        return BatchAcquired(at_s=writer.now_s(), lease=writer.lease, worker=worker)

    def needs_chunk(self, state: BatchState) -> bool:
        return state.needs_chunk and self._clock.now_s() < state.created.expires_s

    def step(self, state: BatchState, writer: BatchWriter) -> None:
        if state.gathering is not None:
            self._gather(state, writer)
        elif state.cancel_requested is not None:
            _begin_gathering(writer, "cancelled")
        elif writer.now_s() >= state.created.expires_s:
            _begin_gathering(writer, "expired")
        elif self._files.find(state.created.input_file_id, state.created.project) is None:
            message = f"File {state.created.input_file_id} was deleted or has expired."
            raise TaskFailedError(TaskFailure("file_not_found", message, "input_file_id"))
        elif state.read is None:
            self._read(state.created, writer)
        elif state.needs_chunk:
            number = state.num_done
            writer.put_chunk(
                self._batches.chunks,
                number,
                make=partial(self._process_chunk, state.created, state.read, number, writer),
                note=partial(_noted, number, writer),
            )
        else:
            _begin_gathering(writer, "completed")

    def failed(self, writer: BatchWriter, problem: TaskFailure) -> BatchFailed:
        fault = BatchFault(code=problem.code, message=problem.message, param=problem.param)
        return BatchFailed(at_s=writer.now_s(), lease=writer.lease, faults=(fault,))

    def close(self, task_id: str, state: BatchState) -> None:
        assert state.ended_s is not None
        event_type, project = f"batch.{state.status}", state.created.project
        self._outbox.enqueue(task_id, event_type, project=project, ended_s=state.ended_s)
        self._batches.chunks.forget(task_id)  # the output files hold the responses

    def let_go(self, task_id: str) -> None:
        self._open.pop(task_id, None)

    def _read(self, created: BatchCreated, writer: BatchWriter) -> None:
        """Validate all lines and log the number of requests."""
        found = read_batch(self._requests(created))
        if found.faults:
            failed = BatchFailed(at_s=writer.now_s(), lease=writer.lease, faults=found.faults)
            writer.put(lambda _: failed)
            return
        read = BatchRead(
            at_s=writer.now_s(),
            lease=writer.lease,
            num_requests=found.num_requests,
            chunk_requests=self._chunk_requests,
        )
        writer.put(lambda now: read if now.read is None else None)

    def _process_chunk(self, created: BatchCreated, read: BatchRead, number: int, writer: BatchWriter) -> BatchChunk:
        if created.batch_id not in self._open:
            self._open[created.batch_id] = ReadAhead(lambda: self._requests(created), BatchRequest)
        first = number * read.chunk_requests
        requests = self._open[created.batch_id].rows(first, min(read.chunk_requests, read.num_requests - first))
        source = ModelSource.model_validate(created.source)
        responses = tuple(
            self._respond(source, request, request_id(created.batch_id, index), writer.now_s())
            for index, request in enumerate(requests, start=first)
        )
        usages = [response.body.get("usage") or {} for response in responses]
        return BatchChunk(
            responses=responses,
            input_tokens=sum(usage.get("prompt_tokens", 0) for usage in usages),
            output_tokens=sum(usage.get("completion_tokens", 0) for usage in usages),
        )

    def _respond(self, source: ModelSource, request: BatchRequest, named: str, now_s: float) -> BatchResponse:
        try:
            status, body = 200, self._models.run(source, partial(_body, request.question, now_s))
        except ApiError as error:
            status, body = error.status, error.envelope()
        return BatchResponse(custom_id=request.custom_id, request_id=named, status=status, body=body)

    def _requests(self, created: BatchCreated) -> Iterator[BatchRequest | BatchFault]:
        return requests_of(self._files.lines(created.input_file_id), created)

    def _gather(self, state: BatchState, writer: BatchWriter) -> None:
        output, errors = self._gathered.output(state), self._gathered.errors(state)
        ended = BatchEnded(at_s=writer.now_s(), lease=writer.lease, output_file_id=output, error_file_id=errors)
        writer.put(lambda _: ended)


def _begin_gathering(writer: BatchWriter, outcome: BatchOutcome) -> None:
    gathering = BatchGathering(at_s=writer.now_s(), lease=writer.lease, outcome=outcome)

    def decide(now: BatchState) -> BatchEntry | None:
        is_so = (now.cancel_requested is not None) == (outcome == "cancelled")
        return gathering if now.gathering is None and is_so else None

    writer.put(decide)


def _noted(number: int, writer: BatchWriter, chunk: BatchChunk) -> BatchChunkCompleted:
    completed = sum(response.status == 200 for response in chunk.responses)
    return BatchChunkCompleted(
        at_s=writer.now_s(),
        lease=writer.lease,
        chunk=number,
        completed=completed,
        failed=len(chunk.responses) - completed,
        input_tokens=chunk.input_tokens,
        output_tokens=chunk.output_tokens,
        **chunk.charge(),
    )


async def _body(question: RequestBody, now_s: float, engine: Engine) -> dict[str, Any]:
    match question:
        case ChatRequest():
            return await chat_completion(engine.stream, engine.ready, question, now_s=now_s)
        case CompletionRequest():
            return await text_completion(engine.stream, engine.ready, question, now_s=now_s)
        case _:
            return await embeddings(engine.stream, question)
