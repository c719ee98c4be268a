"""Writes a batch's output and error files, one JSON object per line.

Their ids follow from the batch's id, so a worker that takes over writes the same files.
"""

import json
from collections.abc import Iterator
from typing import Any

from assay.base.clock import Clock
from assay.base.digest import sha256_of_json
from assay.records.batch import BatchResponse
from assay.records.uploaded_file import FileCreated
from assay.serving.batches.batches import BatchRepository, BatchState
from assay.serving.files import FileRepository
from assay.serving.ids import new_id, timed_id
from assay.workers.batch.batch_input import BatchRequest, requests_of

OUTPUT_PURPOSE = "batch_output"
_SUCCESS = 200


class BatchOutput:
    """Writes the files."""

    def __init__(self, batches: BatchRepository, files: FileRepository, clock: Clock) -> None:
        self._batches = batches
        self._files = files
        self._clock = clock

    def output(self, state: BatchState) -> str | None:
        """Write the successful responses; return the file's id, None if there are none."""
        responses = (response for response in self._responses(state) if response.status == _SUCCESS)
        return self._file(state, "output", map(_line, responses))

    def errors(self, state: BatchState) -> str | None:
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
            chunk = self._batches.find_chunk(state.created.batch_id, number)
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


def request_id(batch_id: str, index: int) -> str:
    """Return the id of a batch's request."""
    return f"batch_req_{sha256_of_json([batch_id, index])[:24]}"


def _line(response: BatchResponse) -> dict[str, Any]:
    tree = {"status_code": response.status, "request_id": response.request_id, "body": response.body}
    return {"id": response.request_id, "custom_id": response.custom_id, "response": tree, "error": None}


def _text(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"
