"""`batches.*`: routes write to the batch's log, and a worker processes it. Its files belong to the project."""

from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from assay.base.parsing.nesting import parse_json
from assay.records.batch import BatchCreated
from assay.records.uploaded_file import FileCreated
from assay.serving.api_error import ApiError
from assay.serving.batches.batches import BatchState
from assay.serving.engines.sources import NamedModel
from assay.serving.ids import new_id
from assay.serving.openai.app_state import AppState, connected_retry, project_of
from assay.serving.openai.bodies import ExpiresAfterBody, Metadata, NoBody, StrictBody, parsed, request_sha256
from assay.serving.openai.file_upload import lifetime_s
from assay.serving.openai.objects import batch_object
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody, declares
from assay.serving.openai.pages import page_of_resources
from assay.serving.retention import INFERENCE

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
WINDOW_S = 86_400.0
MAX_FILE_BYTES = 200 << 20
_FIRST_BYTES = 1 << 20
"""Where the first request is searched for the batch's model."""


class BatchBody(StrictBody):
    """`batches.create`."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Metadata | None = Field(default=None, max_length=16)
    output_expires_after: ExpiresAfterBody | None = None


def batch_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/batches", tags=["batches"], dependencies=QUERY_CHECKED)

    def shape(state: BatchState) -> dict[str, Any]:
        return batch_object(state, app.queue.spent_reason)

    @router.post("", openapi_extra=declares(body=BatchBody))
    def create(request: Request, body: JsonBody) -> dict[str, Any]:
        """Process the requests of a file within a day."""
        created = _created(app, project_of(request), body.json())
        return shape(app.batches.create_once(created, connected_retry(request)))

    @router.get("", openapi_extra=declares("after", "limit"))
    def list_batches(request: Request) -> dict[str, Any]:
        """List batches, newest first."""
        return page_of_resources(app.batches, request, shape)

    @router.get("/{batch_id}")
    def retrieve(request: Request, batch_id: str) -> dict[str, Any]:
        """Retrieve a batch."""
        return shape(app.batches.found(batch_id, project_of(request)))

    @router.post("/{batch_id}/cancel", openapi_extra=declares(body=NoBody))
    def cancel(request: Request, batch_id: str, body: JsonBody) -> dict[str, Any]:
        """Cancel a batch; completed responses are kept."""
        body.parsed(NoBody)
        app.batches.found(batch_id, project_of(request))
        return shape(app.batches.cancel(batch_id))

    return router


def _created(app: AppState, project: str, value: Any) -> BatchCreated:
    body = parsed(BatchBody, value)
    if body.endpoint not in ENDPOINTS:
        raise ApiError(
            f"endpoint must be one of {', '.join(ENDPOINTS)}, not {body.endpoint!r:.80}.",
            param="endpoint",
            code="invalid_value",
        )
    expires, lifetime = body.output_expires_after, None
    if expires is not None:
        lifetime = lifetime_s(expires.anchor, str(expires.seconds), "output_expires_after")
    file = _file(app, project, body.input_file_id)
    model_name, model = _requested_model(app, project, file)
    now_s = app.clock.now_s()
    return BatchCreated(
        batch_id=new_id("batch", now_s),
        project=project,
        at_s=now_s,
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        model=model_name,
        source=None if model is None else model.source.model_dump(mode="json", exclude_none=True),
        expires_s=now_s + WINDOW_S,
        output_lives_s=lifetime,
        metadata=body.metadata,
        request_sha256=request_sha256(project, "batches.create", value),
    )


def _file(app: AppState, project: str, file_id: str) -> FileCreated:
    file = app.files.usable(file_id, project, purpose="batch", param="input_file_id", users="batches")
    if file.num_bytes > MAX_FILE_BYTES:
        raise ApiError(
            f"File {file_id} has {file.num_bytes:,} bytes; a batch may have {MAX_FILE_BYTES:,}. Split it "
            "into several batches.",
            param="input_file_id",
            code="file_too_large",
        )
    return file


def _requested_model(app: AppState, project: str, file: FileCreated) -> tuple[str | None, NamedModel | None]:
    """Return the model of the first request. Invalid lines are reported by the worker."""
    data = b"".join(app.files.blocks(file.file_id, 0, min(file.num_bytes, _FIRST_BYTES)))
    first = next((line for line in data.splitlines() if line.strip()), b"")
    try:
        model = parse_json(first.decode("utf-8-sig"))["body"]["model"]
    except (ValueError, KeyError, TypeError):
        return None, None
    if not isinstance(model, str):
        return None, None
    found = app.names.find(model, project)
    if found is not None:
        app.retention.of(model, found.source.run_id, found.source.step).retain(INFERENCE)
    return model[:512], found
