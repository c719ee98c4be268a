"""`batches.*`: a batch is an entry of its log, and a worker answers; its files are files of the project."""

from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from assay.base.parsing.nesting import parse_json
from assay.records.batch import BatchCreated
from assay.records.uploaded_file import FileCreated
from assay.serving.batches.batches import BatchState
from assay.serving.engines.sources import NamedModel
from assay.serving.ids import new_id
from assay.serving.openai.bodies import ExpiresAfterBody, Metadata, NoBody, parsed, read_json, request_sha256
from assay.serving.openai.declared import takes
from assay.serving.openai.incoming import lifetime_s
from assay.serving.openai.pages import page_of_shelf
from assay.serving.openai.place import Place, project_of, query_of, still_asked_for
from assay.serving.openai.shapes import batch_shape
from assay.serving.refusal import RefusedError, not_found
from assay.serving.retention import ANSWERS

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
WINDOW_S = 86_400.0
MAX_FILE_BYTES = 200 << 20
_FIRST_BYTES = 1 << 20
"""Where the first request is looked for, which says whom the batch asks."""


class BatchBody(BaseModel):
    """`batches.create`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Metadata | None = Field(default=None, max_length=16)
    output_expires_after: ExpiresAfterBody | None = None


def batch_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/batches", tags=["batches"])

    @router.post("", openapi_extra=takes(body=BatchBody))
    async def create(request: Request) -> dict[str, Any]:
        """Have the requests of a file answered within a day."""
        query_of(request)
        value, project = await read_json(request), project_of(request)
        created = await run_in_threadpool(_created, place, project, value)
        asked = await still_asked_for(request, created.request_sha256)

        def make(batch_id: str) -> BatchState:
            return place.batches.put(created.model_copy(update={"batch_id": batch_id}))

        made = partial(place.batch_repeats.made, asked, created.batch_id, make)
        return await run_in_threadpool(lambda: _shown(place, made()))

    @router.get("", openapi_extra=takes("after", "limit"))
    def list_batches(request: Request) -> dict[str, Any]:
        """All batches, the newest first."""
        query, project = query_of(request), project_of(request)

        def shown(batch_id: str) -> dict[str, Any] | None:
            state = place.batches.find(batch_id, project)
            return None if state is None else _shown(place, state)

        return page_of_shelf(place.batches.shelf, project, shown, query, limit=20, max_limit=100)

    @router.get("/{batch_id}")
    def retrieve(request: Request, batch_id: str) -> dict[str, Any]:
        """One batch."""
        query_of(request)
        return _shown(place, _found(place, request, batch_id))

    @router.post("/{batch_id}/cancel", openapi_extra=takes(body=NoBody))
    async def cancel(request: Request, batch_id: str) -> dict[str, Any]:
        """Have nothing more answered; what was is gathered."""
        query_of(request)
        parsed(NoBody, await read_json(request))
        await run_in_threadpool(_found, place, request, batch_id)
        return await run_in_threadpool(lambda: _shown(place, place.batches.cancel(batch_id)))

    return router


def _shown(place: Place, state: BatchState) -> dict[str, Any]:
    return batch_shape(state, place.queue.why_spent)


def _found(place: Place, request: Request, batch_id: str) -> BatchState:
    state = place.batches.find(batch_id, project_of(request))
    if state is None:
        raise not_found("batch", batch_id, param="batch_id")
    return state


def _created(place: Place, project: str, value: Any) -> BatchCreated:
    body = parsed(BatchBody, value)
    if body.endpoint not in ENDPOINTS:
        raise RefusedError(
            f"Batches ask {', '.join(ENDPOINTS)}, not {body.endpoint!r:.80}.",
            param="endpoint",
            code="invalid_value",
        )
    expires, lives_s = body.output_expires_after, None
    if expires is not None:
        lives_s = lifetime_s(expires.anchor, str(expires.seconds), "output_expires_after")
    file = _file(place, project, body.input_file_id)
    asked, model = _model_asked(place, project, file)
    now_s = place.clock.now_s()
    return BatchCreated(
        batch_id=new_id("batch", now_s),
        project=project,
        at_s=now_s,
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        model=asked,
        source=None if model is None else model.source.model_dump(mode="json", exclude_none=True),
        expires_s=now_s + WINDOW_S,
        output_lives_s=lives_s,
        metadata=body.metadata,
        request_sha256=request_sha256(project, "batches.create", value),
    )


def _file(place: Place, project: str, file_id: str) -> FileCreated:
    file = place.files.find(file_id, project)
    if file is None:
        raise RefusedError(
            f"There is no file {file_id!r:.120} in this project.", param="input_file_id", code="file_not_found"
        )
    if file.purpose != "batch":
        raise RefusedError(
            f"File {file_id} was uploaded with purpose '{file.purpose}'; a batch reads files of purpose "
            "'batch'. Upload it again with that.",
            param="input_file_id",
            code="invalid_file_purpose",
        )
    if file.num_bytes > MAX_FILE_BYTES:
        raise RefusedError(
            f"File {file_id} has {file.num_bytes:,} bytes; a batch's has at most {MAX_FILE_BYTES:,}. Make "
            "several batches of it.",
            param="input_file_id",
            code="file_too_large",
        )
    return file


def _model_asked(place: Place, project: str, file: FileCreated) -> tuple[str | None, NamedModel | None]:
    """Whom the first request asks, and the model of that name. What is wrong with a line, a worker says when it
    checks them all."""
    data = b"".join(place.files.blocks(file.file_id, 0, min(file.num_bytes, _FIRST_BYTES)))
    first = next((line for line in data.splitlines() if line.strip()), b"")
    try:
        model = parse_json(first.decode("utf-8-sig"))["body"]["model"]
    except (ValueError, KeyError, TypeError):
        return None, None
    if not isinstance(model, str):
        return None, None
    found = place.names.find(model, project)
    if found is not None:
        place.keeper.of(model, found.source.run_id, found.source.step).keep(ANSWERS)
    return model[:512], found
