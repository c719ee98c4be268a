"""Reads the requests of a batch. All lines are validated before the first request runs; errors name their line.

A request's body is parsed as its endpoint parses it, so both accept the same requests.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import xxhash

from assay.base.errors import DataError
from assay.records.batch import BatchCreated, BatchFault
from assay.serving.api_error import ApiError
from assay.serving.openai.inference.request_bodies import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    parse_request,
)
from assay.workers.fine_tuning.training_file import MAX_FAULTS, json_object, without_bom

RequestBody = ChatRequest | CompletionRequest | EmbeddingRequest
REQUEST_CLASSES: dict[str, type[RequestBody]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
}
MAX_REQUESTS = 50_000
MAX_CUSTOM_ID = 512
_KEYS = ("custom_id", "method", "url", "body")


class BatchRequest(NamedTuple):
    """One line of the input file."""

    custom_id: str
    question: RequestBody


def requests_of(lines: Iterable[bytes], created: BatchCreated) -> Iterator[BatchRequest | BatchFault]:
    """Yield each line as a request or a fault; empty lines are skipped."""
    seen: set[int] = set()
    for number, line in enumerate(lines, start=1):
        if not (text := without_bom(line)).strip():
            continue
        try:
            request = _request(json_object(text), created)
            digest = xxhash.xxh3_64_intdigest(request.custom_id.encode())
            if digest in seen:
                raise _fault("custom_id", "duplicate_custom_id", f"{request.custom_id!r:.80} occurs more than once")
            seen.add(digest)
        except DataError as error:
            yield BatchFault(code="invalid_json_line", message=str(error).removesuffix("."), line=number)
        except ApiError as error:
            yield BatchFault(code=error.code or "invalid_value", message=error.message, line=number, param=error.param)
        else:
            yield request


def read_batch(requests: Iterable[BatchRequest | BatchFault]) -> tuple[int, tuple[BatchFault, ...]]:
    """Return the number of requests, and the first hundred faults; with a hundred, the rest was not read."""
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
            message = f"A batch has at most {MAX_REQUESTS:,} requests. Split the file."
            faults.append(BatchFault(code="too_many_requests", message=message))
            break
    if not num_requests and not faults:
        faults.append(BatchFault(code="empty_file", message="The file has no requests."))
    return num_requests, tuple(faults)


def _request(tree: dict[str, Any], created: BatchCreated) -> BatchRequest:
    for name in _KEYS:
        if name not in tree:
            raise _fault(name, "missing_required_parameter", f"Missing required parameter: '{name}'.")
    if unknown := sorted(set(tree) - set(_KEYS)):
        raise _fault(unknown[0], "unknown_parameter", f"Unknown parameter: '{unknown[0]:.80}'.")
    custom_id = tree["custom_id"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        raise _fault("custom_id", "invalid_value", f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters.")
    if tree["method"] != "POST":
        raise _fault("method", "invalid_method", f"method must be 'POST', not {tree['method']!r:.40}.")
    if tree["url"] != created.endpoint:
        message = f"url is {tree['url']!r:.80}, but the batch was created for '{created.endpoint}'."
        raise _fault("url", "invalid_url", message)
    return BatchRequest(custom_id, _request_body(tree["body"], created))


def _request_body(body: Any, created: BatchCreated) -> RequestBody:
    try:
        question = parse_request(REQUEST_CLASSES[created.endpoint], body)
    except ApiError as error:
        where = "body" if error.param is None else f"body.{error.param}"
        raise _fault(where, error.code or "invalid_value", error.message) from error
    if not isinstance(question, EmbeddingRequest) and question.stream:
        raise _fault("body.stream", "invalid_value", "Batches cannot stream. Remove 'stream'.")
    if created.source is None:
        message = (
            f"There is no model {question.model!r:.160} in this project; 'models.list' returns the available ones."
        )
        raise _fault("body.model", "model_not_found", message)
    if question.model != created.model:
        message = (
            f"The model is {question.model!r:.160}, but the first request has {created.model!r:.160}. A batch "
            "uses one model."
        )
        raise _fault("body.model", "mismatched_model", message)
    return question


def _fault(param: str, code: str, message: str) -> ApiError:
    return ApiError(message, param=param, code=code)
