"""Processes batches: read the input, respond chunk by chunk, write the output files.

created --> read (all lines validated) --> chunk: put if absent --> logged ... --> gathering --> ended
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from assay.base.clock import Clock
from assay.inference.protocol import ModelSource
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
from assay.serving.engines.process import EngineProcess
from assay.serving.files import FileRepository
from assay.serving.openai.inference.request_bodies import ChatRequest, CompletionRequest
from assay.serving.openai.inference.responses import chat_completion, embeddings, text_completion
from assay.serving.webhooks.outbox import Outbox
from assay.workers.batch.batch_input import BatchRequest, RequestBody, read_batch, requests_of
from assay.workers.batch.batch_output import BatchOutput, request_id
from assay.workers.batch.models import EngineModels
from assay.workers.batch.task_handler import ReadAhead, TaskFailedError, TaskHandler, TaskWriter

CHUNK_REQUESTS = 16
BatchWriter = TaskWriter[BatchEntry, BatchState]


class BatchHandler(TaskHandler[BatchEntry, BatchState, BatchChunk]):
    """Processes all batches."""

    cannot = "cannot_answer"
    acquired = BatchAcquired

    def __init__(
        self,
        batches: BatchRepository,
        files: FileRepository,
        models: EngineModels,
        outbox: Outbox,
        *,
        clock: Clock,
        chunk_requests: int = CHUNK_REQUESTS,
        **limits: Any,
    ) -> None:
        """`limits`: see `TaskHandler`."""
        super().__init__(batches, outbox, clock, **limits)
        self._files = files
        self._models = models
        self._chunk_requests = chunk_requests
        self._output = BatchOutput(batches, files, clock)
        self._open: dict[str, ReadAhead[BatchRequest]] = {}

    def needs_chunk(self, state: BatchState) -> bool:
        return state.needs_chunk and self._clock.now_s() < state.created.expires_s

    def advance(self, state: BatchState, writer: BatchWriter) -> None:
        created = state.created
        if state.gathering is not None:
            output, errors = self._output.output(state), self._output.errors(state)
            writer.put(writer.entry(BatchEnded, output_file_id=output, error_file_id=errors))
        elif state.cancel_requested is not None:
            _begin_gathering(writer, "cancelled")
        elif writer.now_s() >= created.expires_s:
            _begin_gathering(writer, "expired")
        elif self._files.find(created.input_file_id, created.project) is None:
            message = f"File {created.input_file_id} was deleted or has expired."
            raise TaskFailedError("file_not_found", message, "input_file_id")
        elif state.read is None:
            self._read(created, writer)
        elif state.needs_chunk:
            number = state.num_done
            make = partial(self._process_chunk, created, state.read, number, writer)
            self.put_chunk(created.batch_id, state, writer, make, partial(_noted, number, writer))
        else:
            _begin_gathering(writer, "completed")

    def failed(self, writer: BatchWriter, problem: TaskFailedError) -> BatchEntry:
        fault = BatchFault(code=problem.code, message=problem.message, param=problem.param)
        return writer.entry(BatchFailed, faults=(fault,))

    def close(self, task_id: str, state: BatchState) -> None:
        assert state.ended_s is not None
        event_type, project = f"batch.{state.status}", state.created.project
        self._outbox.enqueue(task_id, event_type, project=project, ended_s=state.ended_s)
        self._tasks.forget_chunks(task_id)  # the output files hold the responses

    def let_go(self, unit_id: str) -> bool:
        self._open.pop(unit_id, None)
        return True

    def _read(self, created: BatchCreated, writer: BatchWriter) -> None:
        """Validate all lines and log the number of requests."""
        num_requests, faults = read_batch(self._requests(created))
        if faults:
            writer.put(writer.entry(BatchFailed, faults=faults))
            return
        read = writer.entry(BatchRead, num_requests=num_requests, chunk_requests=self._chunk_requests)
        writer.put(read, when=lambda now: now.read is None)

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


def _begin_gathering(writer: BatchWriter, outcome: BatchOutcome) -> None:
    def is_new(now: BatchState) -> bool:
        return now.gathering is None and (now.cancel_requested is not None) == (outcome == "cancelled")

    writer.put(writer.entry(BatchGathering, outcome=outcome), when=is_new)


def _noted(number: int, writer: BatchWriter, chunk: BatchChunk) -> BatchEntry:
    completed = sum(response.status == 200 for response in chunk.responses)
    return writer.entry(
        BatchChunkCompleted,
        chunk=number,
        completed=completed,
        failed=len(chunk.responses) - completed,
        input_tokens=chunk.input_tokens,
        output_tokens=chunk.output_tokens,
        **chunk.charge(),
    )


async def _body(question: RequestBody, now_s: float, engine: EngineProcess) -> dict[str, Any]:
    match question:
        case ChatRequest():
            return await chat_completion(engine, question, now_s=now_s)
        case CompletionRequest():
            return await text_completion(engine, question, now_s=now_s)
        case _:
            return await embeddings(engine, question)
