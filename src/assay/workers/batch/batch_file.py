"""The requests of a batch: every line is checked before the first is answered, and each fault has its line.

A request's body is read as the endpoint itself reads it, so what passes here can be asked, and what is refused
here would have been refused there, one at a time.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import xxhash

from assay.base.errors import DataError
from assay.records.batch import BatchCreated, BatchFault
from assay.serving.openai.inference.questions import (
    ChatQuestion,
    CompletionQuestion,
    EmbeddingQuestion,
    read_question,
)
from assay.serving.refusal import RefusedError
from assay.workers.fine_tuning.training_file import MAX_FAULTS, json_object, without_bom

Question = ChatQuestion | CompletionQuestion | EmbeddingQuestion
QUESTIONS: dict[str, type[Question]] = {
    "/v1/chat/completions": ChatQuestion,
    "/v1/completions": CompletionQuestion,
    "/v1/embeddings": EmbeddingQuestion,
}
MAX_REQUESTS = 50_000
MAX_CUSTOM_ID = 512
_KEYS = ("custom_id", "method", "url", "body")


class BatchRequest(NamedTuple):
    """One line."""

    custom_id: str
    question: Question


class ReadBatch(NamedTuple):
    """What became of a batch's file."""

    num_requests: int
    faults: tuple[BatchFault, ...]
    """At most a hundred; where there are as many, the rest was not looked at."""


def requests_of(lines: Iterable[bytes], created: BatchCreated) -> Iterator[BatchRequest | BatchFault]:
    """Each line as a request, or what is wrong with it; empty lines are none."""
    seen: set[int] = set()
    for number, line in enumerate(lines, start=1):
        if not (text := without_bom(line)).strip():
            continue
        try:
            request = _request(json_object(text), created)
            digest = xxhash.xxh3_64_intdigest(request.custom_id.encode())
            if digest in seen:
                raise _fault("custom_id", "duplicate_custom_id", f"{request.custom_id!r:.80} was there before")
            seen.add(digest)
        except DataError as error:
            yield BatchFault(code="invalid_json_line", message=str(error).removesuffix("."), line=number)
        except RefusedError as error:
            yield BatchFault(
                code=error.code or "invalid_value", message=error.message, line=number, param=error.param
            )
        else:
            yield request


def read_batch(requests: Iterable[BatchRequest | BatchFault]) -> ReadBatch:
    """How many requests there are, or what is wrong with the first hundred lines that are none."""
    faults: list[BatchFault] = []
    num_requests = 0
    for request in requests:
        if isinstance(request, BatchFault):
            faults.append(request)
        else:
            num_requests += 1
        if len(faults) == MAX_FAULTS:
            break
        if num_requests > MAX_REQUESTS:
            said = f"A batch has at most {MAX_REQUESTS:,} requests. Make several of it."
            faults.append(BatchFault(code="too_many_requests", message=said))
            break
    if not num_requests and not faults:
        faults.append(BatchFault(code="empty_file", message="The file has no requests."))
    return ReadBatch(num_requests, tuple(faults))


def _request(tree: dict[str, Any], created: BatchCreated) -> BatchRequest:
    for name in _KEYS:
        if name not in tree:
            raise _fault(name, "missing_required_parameter", f"Missing required parameter: '{name}'.")
    if unknown := sorted(set(tree) - set(_KEYS)):
        raise _fault(unknown[0], "unknown_parameter", f"Unknown parameter: '{unknown[0]:.80}'.")
    custom_id = tree["custom_id"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise _fault("custom_id", "invalid_value", f"custom_id is a text of 1 to {MAX_CUSTOM_ID} characters.")
    if tree["method"] != "POST":
        raise _fault("method", "invalid_method", f"method is 'POST', not {tree['method']!r:.40}.")
    if tree["url"] != created.endpoint:
        said = f"url is {tree['url']!r:.80}, and the batch was created for '{created.endpoint}'."
        raise _fault("url", "invalid_url", said)
    return BatchRequest(custom_id, _question(tree["body"], created))


def _question(body: Any, created: BatchCreated) -> Question:
    try:
        question = read_question(QUESTIONS[created.endpoint], body)
    except RefusedError as error:
        where = "body" if error.param is None else f"body.{error.param}"
        raise _fault(where, error.code or "invalid_value", error.message) from error
    if not isinstance(question, EmbeddingQuestion) and question.stream:
        raise _fault(
            "body.stream", "invalid_value", "Nobody listens to a stream in a batch: leave 'stream' out."
        )
    if created.source is None:
        said = f"There is no model {question.model!r:.160} in this project; 'models.list' says which there are."
        raise _fault("body.model", "model_not_found", said)
    if question.model != created.model:
        said = (
            f"It asks {question.model!r:.160}, and the first request {created.model!r:.160}: a batch asks one."
        )
        raise _fault("body.model", "mismatched_model", said)
    return question


def _fault(param: str, code: str, message: str) -> RefusedError:
    return RefusedError(message, param=param, code=code)
