"""Processes batches: read the input, respond chunk by chunk, write the output files.

created --> read (all lines validated) --> chunk: put if absent --> logged ... --> gathering --> ended

The ids of output files follow from the batch's id, so a worker that takes over writes the same files.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from assay.base.clock import Clock
from assay.base.digest import sha256_of_json
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
from assay.records.uploaded_file import FileCreated
from assay.serving.api_error import ApiError
from assay.serving.batches.batches import BatchRepository, BatchState
from assay.serving.engines.process import EngineProcess
from assay.serving.files import FileRepository
from assay.serving.ids import new_id, timed_id
from assay.serving.openai.inference.request_bodies import ChatRequest, CompletionRequest
from assay.serving.openai.inference.responses import chat_completion, embeddings, text_completion
from assay.serving.webhooks.outbox import Outbox
from assay.store.logs.fenced_log import FencedLog
from assay.workers.batch.batch_input import BatchRequest, RequestBody, read_batch, requests_of
from assay.workers.batch.models import EngineModels
from assay.workers.batch.task_handler import ReadAhead, TaskFailedError, TaskHandler

CHUNK_REQUESTS = 16
BatchLog = FencedLog[BatchEntry, BatchState]


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
        self._open: dict[str, ReadAhead[BatchRequest]] = {}

    def needs_chunk(self, state: BatchState) -> bool:
        return state.needs_chunk and self._clock.now_s() < state.created.expires_s

    def advance(self, state: BatchState, log: BatchLog) -> None:
        created = state.created
        if state.gathering is not None:
            output, errors = self._output(state), self._errors(state)
            log.append(log.entry(BatchEnded, output_file_id=output, error_file_id=errors))
        elif state.cancel_requested is not None:
            _begin_gathering(log, "cancelled")
        elif self._clock.now_s() >= created.expires_s:
            _begin_gathering(log, "expired")
        elif self._files.find(created.input_file_id, created.project) is None:
            message = f"File {created.input_file_id} was deleted or has expired."
            raise TaskFailedError("file_not_found", message, "input_file_id")
        elif state.read is None:
            self._read(created, log)
        elif state.needs_chunk:
            number = state.num_done
            make = partial(self._process_chunk, created, state.read, number)
            self.put_chunk(created.batch_id, state, log, make, partial(_noted, number, log))
        else:
            _begin_gathering(log, "completed")

    def failed(self, log: BatchLog, problem: TaskFailedError) -> BatchEntry:
        fault = BatchFault(code=problem.code, message=problem.message, param=problem.param)
        return log.entry(BatchFailed, faults=(fault,))

    def close(self, task_id: str, state: BatchState) -> None:
        assert state.ended_s is not None
        event_type, project = f"batch.{state.status}", state.created.project
        self._outbox.enqueue(task_id, event_type, project=project, ended_s=state.ended_s)
        self._tasks.forget_chunks(task_id)  # the output files hold the responses

    def let_go(self, unit_id: str) -> bool:
        self._open.pop(unit_id, None)
        return True

    def _read(self, created: BatchCreated, log: BatchLog) -> None:
        """Validate all lines and log the number of requests."""
        num_requests, faults = read_batch(self._requests(created))
        if faults:
            log.append(log.entry(BatchFailed, faults=faults))
            return
        read = log.entry(BatchRead, num_requests=num_requests, chunk_requests=self._chunk_requests)
        log.append(read, when=lambda now: now.read is None)

    def _process_chunk(self, created: BatchCreated, read: BatchRead, number: int) -> BatchChunk:
        if created.batch_id not in self._open:
            self._open[created.batch_id] = ReadAhead(lambda: self._requests(created), BatchRequest)
        first = number * read.chunk_requests
        requests = self._open[created.batch_id].rows(first, min(read.chunk_requests, read.num_requests - first))
        source = ModelSource.model_validate(created.source)
        responses = tuple(
            self._respond(source, request, request_id(created.batch_id, index), self._clock.now_s())
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

    def _output(self, state: BatchState) -> str | None:
        """Write the successful responses; return the file's id, None if there are none."""
        responses = (response for response in self._responses(state) if response.status == _SUCCESS)
        return self._file(state, "output", map(_line, responses))

    def _errors(self, state: BatchState) -> str | None:
        """Write failed and expired requests; return the file's id, None if there are none."""
        return self._file(state, "error", self._unanswered(state))

    def _unanswered(self, state: BatchState) -> Iterator[dict[str, Any]]:
        yield from (_line(response) for response in self._responses(state) if response.status != _SUCCESS)
        created = state.created
        if state.gathering is None or state.gathering.outcome != "expired" or state.read is None:
            return
        if self._files.find(created.input_file_id, created.project) is None:
            return
        lines = self._files.lines(created.input_file_id)
        requests = (request for request in requests_of(lines, created) if isinstance(request, BatchRequest))
        message = "The completion window ended before this request was processed."
        for index, request in enumerate(requests):
            if index >= state.num_processed:
                yield {
                    "id": request_id(created.batch_id, index),
                    "custom_id": request.custom_id,
                    "response": None,
                    "error": {"code": "batch_expired", "message": message},
                }

    def _responses(self, state: BatchState) -> Iterator[BatchResponse]:
        for number in range(state.num_done):
            chunk = self._tasks.find_chunk(state.created.batch_id, number)
            assert chunk is not None, "stored before its log entry"
            yield from chunk.responses

    def _file(self, state: BatchState, word: str, lines: Iterator[dict[str, Any]]) -> str | None:
        created, gathering = state.created, state.gathering
        assert gathering is not None
        file_id = timed_id("file", gathering.at_s, sha256_of_json([created.batch_id, word]))
        if self._files.state(file_id) is not None:
            return file_id
        first = next(lines, None)
        if first is None:
            return None
        now_s = self._clock.now_s()
        sink = self._files.sink(name := new_id("file", now_s))
        try:
            sink.write(_text(first))
            for line in lines:
                sink.write(_text(line))
        except BaseException as error:
            sink.abort(error)
            raise
        sink.finish()
        lives_s = created.output_lives_s
        self._files.put(
            FileCreated(
                file_id=file_id,
                project=created.project,
                at_s=now_s,
                filename=f"{created.batch_id}_{word}.jsonl",
                purpose=OUTPUT_PURPOSE,
                num_bytes=sink.num_bytes,
                sha256=sink.sha256,
                expires_s=None if lives_s is None else now_s + lives_s,
                content=name,
            )
        )
        return file_id


def _begin_gathering(log: BatchLog, outcome: BatchOutcome) -> None:
    def is_new(now: BatchState) -> bool:
        return now.gathering is None and (now.cancel_requested is not None) == (outcome == "cancelled")

    log.append(log.entry(BatchGathering, outcome=outcome), when=is_new)


def _noted(number: int, log: BatchLog, chunk: BatchChunk) -> BatchEntry:
    completed = sum(response.status == 200 for response in chunk.responses)
    return log.entry(
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


OUTPUT_PURPOSE = "batch_output"
_SUCCESS = 200


def request_id(batch_id: str, index: int) -> str:
    """Return the id of a batch's request."""
    return f"batch_req_{sha256_of_json([batch_id, index])[:24]}"


def _line(response: BatchResponse) -> dict[str, Any]:
    tree = {"status_code": response.status, "request_id": response.request_id, "body": response.body}
    return {"id": response.request_id, "custom_id": response.custom_id, "response": tree, "error": None}


def _text(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"
