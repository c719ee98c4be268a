"""The two files that a batch leaves: what was answered, and what was not and why, one JSON object a line.

Their ids follow from the batch's, so whoever takes over makes the same files.
"""

import json
from collections.abc import Iterator
from typing import Any

from assay.base.clock import Clock
from assay.base.digest import sha256_of_json
from assay.records.batch import BatchAnswer
from assay.records.uploaded_file import FileCreated
from assay.serving.batches.batches import BatchShelf, BatchState
from assay.serving.files import FileShelf
from assay.serving.ids import moment_id, new_id
from assay.workers.batch.batch_file import BatchRequest, requests_of

OUTPUT_PURPOSE = "batch_output"
_SUCCESS = 200


class BatchFiles:
    """Writes them."""

    def __init__(self, batches: BatchShelf, files: FileShelf, clock: Clock) -> None:
        self._batches = batches
        self._files = files
        self._clock = clock

    def output(self, state: BatchState) -> str | None:
        """The id of the file of what was answered; None where nothing was."""
        answers = (each for each in self._answers(state) if each.status == _SUCCESS)
        return self._file(state, "output", map(_line, answers))

    def errors(self, state: BatchState) -> str | None:
        """The id of the file of what was refused, or came too late; None where nothing was."""
        return self._file(state, "error", self._unanswered(state))

    def _unanswered(self, state: BatchState) -> Iterator[dict[str, Any]]:
        yield from (_line(each) for each in self._answers(state) if each.status != _SUCCESS)
        created = state.created
        if state.gathering is None or state.gathering.outcome != "expired" or state.read is None:
            return
        if self._files.find(created.input_file_id, created.project) is None:
            return
        lines = self._files.lines(created.input_file_id)
        requests = (each for each in requests_of(lines, created) if isinstance(each, BatchRequest))
        said = "It was not asked before the completion window was over."
        for place, request in enumerate(requests):
            if place >= state.num_answered:
                yield {
                    "id": request_id(created.batch_id, place),
                    "custom_id": request.custom_id,
                    "response": None,
                    "error": {"code": "batch_expired", "message": said},
                }

    def _answers(self, state: BatchState) -> Iterator[BatchAnswer]:
        for number in range(state.num_made):
            chunk = self._batches.chunks.find(state.created.batch_id, number)
            assert chunk is not None, "its entry is put behind it"
            yield from chunk.answers

    def _file(self, state: BatchState, word: str, lines: Iterator[dict[str, Any]]) -> str | None:
        created, gathering = state.created, state.gathering
        assert gathering is not None
        file_id = moment_id("file", gathering.at_s, sha256_of_json([created.batch_id, word]))
        if self._files.shelf.state(file_id) is not None:
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
            sink.abandon(error)
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


def request_id(batch_id: str, place: int) -> str:
    """The id of a batch's request in a place."""
    return f"batch_req_{sha256_of_json([batch_id, place])[:24]}"


def _line(answer: BatchAnswer) -> dict[str, Any]:
    response = {"status_code": answer.status, "request_id": answer.request_id, "body": answer.body}
    return {"id": answer.request_id, "custom_id": answer.custom_id, "response": response, "error": None}


def _text(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"
