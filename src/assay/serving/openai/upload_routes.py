"""`uploads.*`: a file sent in parts, which may be sent concurrently and repeatedly."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from assay.records.chunked_upload import PartAdded, UploadCreated
from assay.serving.api_error import ApiError
from assay.serving.ids import new_id
from assay.serving.openai.app_state import AppState, connected_retry, project_of
from assay.serving.openai.bodies import NoBody, UploadBody, UploadCompleteBody, parsed, request_sha256
from assay.serving.openai.file_upload import ReceivedForm, check_filename, check_purpose, lifetime_s, received
from assay.serving.openai.objects import part_object, upload_object
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody, declares
from assay.serving.uploads import LIVES_S

MAX_PART_BYTES = 64 << 20
"""As in the hosted API; the SDK sends parts of this size."""
_FORM = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string", "format": "binary"}}}


def upload_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/uploads", tags=["uploads"], dependencies=QUERY_CHECKED)

    @router.post("", openapi_extra=declares(body=UploadBody))
    def create(request: Request, body: JsonBody) -> dict[str, Any]:
        """Create an upload."""
        project = project_of(request)
        created = _created(app, project, body.json())
        app.storage.check_quota(project, created.num_bytes, "bytes")
        return upload_object(app.uploads.create_once(created, connected_retry(request)), app.clock.now_s())

    @router.post("/{upload_id}/parts", openapi_extra=declares(form=_FORM))
    async def add_part(request: Request, upload_id: str) -> dict[str, Any]:
        """Add a part."""
        await run_in_threadpool(app.uploads.found, upload_id, project_of(request))
        at_s = app.clock.now_s()
        part_id = new_id("part", at_s)
        with app.storage.reserve(project_of(request), "data") as take:
            part = await received(
                request,
                "data",
                lambda: app.uploads.part_sink(upload_id, part_id),
                lambda form: _part(form, part_id, at_s),
                take,
                max_bytes=MAX_PART_BYTES,
            )
            await run_in_threadpool(app.uploads.add, upload_id, part)
        return part_object(upload_id, part)

    @router.post("/{upload_id}/complete", openapi_extra=declares(body=UploadCompleteBody))
    def complete(request: Request, upload_id: str, body: JsonBody) -> dict[str, Any]:
        """Join the parts to a file."""
        app.uploads.found(upload_id, project_of(request))
        parts = body.parsed(UploadCompleteBody)
        state, file = app.uploads.complete(upload_id, parts.part_ids, parts.md5)
        return upload_object(state, app.clock.now_s(), file)

    @router.post("/{upload_id}/cancel", openapi_extra=declares(body=NoBody))
    def cancel(request: Request, upload_id: str, body: JsonBody) -> dict[str, Any]:
        """Cancel an upload."""
        body.parsed(NoBody)
        app.uploads.found(upload_id, project_of(request))
        return upload_object(app.uploads.cancel(upload_id), app.clock.now_s())

    return router


def _part(form: ReceivedForm, part_id: str, at_s: float) -> PartAdded:
    if form.fields:
        name = next(iter(form.fields))
        raise ApiError(f"Unknown parameter: '{name:.80}'.", param=name, code="unknown_parameter")
    return PartAdded(at_s=at_s, part_id=part_id, num_bytes=form.sink.num_bytes, sha256=form.sink.sha256)


def _created(app: AppState, project: str, value: Any) -> UploadCreated:
    body = parsed(UploadBody, value)
    check_purpose(body.purpose)
    check_filename(body.filename, "filename")
    expires, now_s = body.expires_after, app.clock.now_s()
    return UploadCreated(
        upload_id=new_id("upload", now_s),
        project=project,
        at_s=now_s,
        filename=body.filename,
        mime_type=body.mime_type,
        purpose=body.purpose,
        num_bytes=body.bytes,
        expires_s=now_s + LIVES_S,
        file_lives_s=None if expires is None else lifetime_s(expires.anchor, expires.seconds),
        request_sha256=request_sha256(project, "uploads.create", value),
    )
