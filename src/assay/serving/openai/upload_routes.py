"""`uploads.*`: a file that comes in parts, which may be sent side by side and again."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from assay.records.chunked_upload import PartAdded, UploadCreated
from assay.serving.ids import new_id
from assay.serving.openai.bodies import (
    NoBody,
    UploadBody,
    UploadCompleteBody,
    parsed,
    read_json,
    request_sha256,
)
from assay.serving.openai.declared import takes
from assay.serving.openai.incoming import Received, check_filename, check_purpose, lifetime_s, received
from assay.serving.openai.place import Place, project_of, query_of, still_asked_for
from assay.serving.openai.shapes import part_shape, upload_shape
from assay.serving.refusal import RefusedError, not_found
from assay.serving.uploads import LIVES_S, UploadState

MAX_PART_BYTES = 64 << 20
"""As the hosted API has it; the SDK sends parts of just this size."""
_FORM = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "format": "binary"}},
}


def upload_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/uploads", tags=["uploads"])

    @router.post("", openapi_extra=takes(body=UploadBody))
    async def create(request: Request) -> dict[str, Any]:
        """Begin an upload."""
        query_of(request)
        value, project = await read_json(request), project_of(request)
        created = _created(place, project, value)
        await run_in_threadpool(place.storage.refuse_beyond, project, created.num_bytes, "bytes")
        asked = await still_asked_for(request, created.request_sha256)

        def make(upload_id: str) -> UploadState:
            return place.uploads.put(created.model_copy(update={"upload_id": upload_id}))

        state = await run_in_threadpool(place.upload_repeats.made, asked, created.upload_id, make)
        return upload_shape(state, place.clock.now_s())

    @router.post("/{upload_id}/parts", openapi_extra=takes(form=_FORM))
    async def add_part(request: Request, upload_id: str) -> dict[str, Any]:
        """Send a part."""
        query_of(request)
        await run_in_threadpool(_found, place, request, upload_id)
        at_s = place.clock.now_s()
        part_id = new_id("part", at_s)
        with place.storage.room(project_of(request), "data") as take:
            part = await received(
                request,
                "data",
                lambda: place.uploads.part_sink(upload_id, part_id),
                lambda form: _part(form, part_id, at_s),
                take,
                max_bytes=MAX_PART_BYTES,
            )
            await run_in_threadpool(place.uploads.add, upload_id, part)
        return part_shape(upload_id, part)

    @router.post("/{upload_id}/complete", openapi_extra=takes(body=UploadCompleteBody))
    async def complete(request: Request, upload_id: str) -> dict[str, Any]:
        """Make the file of its parts."""
        query_of(request)
        await run_in_threadpool(_found, place, request, upload_id)
        body = parsed(UploadCompleteBody, await read_json(request))
        state, file = await run_in_threadpool(place.uploads.complete, upload_id, body.part_ids, body.md5)
        return upload_shape(state, place.clock.now_s(), file)

    @router.post("/{upload_id}/cancel", openapi_extra=takes(body=NoBody))
    async def cancel(request: Request, upload_id: str) -> dict[str, Any]:
        """Have nothing come of it."""
        query_of(request)
        parsed(NoBody, await read_json(request))
        await run_in_threadpool(_found, place, request, upload_id)
        return upload_shape(await run_in_threadpool(place.uploads.cancel, upload_id), place.clock.now_s())

    return router


def _found(place: Place, request: Request, upload_id: str) -> UploadState:
    state = place.uploads.find(upload_id, project_of(request))
    if state is None:
        raise not_found("upload", upload_id, param="upload_id")
    return state


def _part(form: Received, part_id: str, at_s: float) -> PartAdded:
    if form.fields:
        name = next(iter(form.fields))
        raise RefusedError(f"Unknown parameter: '{name:.80}'.", param=name, code="unknown_parameter")
    return PartAdded(at_s=at_s, part_id=part_id, num_bytes=form.sink.num_bytes, sha256=form.sink.sha256)


def _created(place: Place, project: str, value: Any) -> UploadCreated:
    body = parsed(UploadBody, value)
    check_purpose(body.purpose)
    check_filename(body.filename, "filename")
    expires, now_s = body.expires_after, place.clock.now_s()
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
