"""`files.*`: uploads and downloads are streamed."""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from assay.records.uploaded_file import FileCreated
from assay.serving.api_error import ApiError
from assay.serving.files import FileState
from assay.serving.ids import new_id
from assay.serving.openai.app_state import AppState, project_of, retry_of
from assay.serving.openai.bodies import request_sha256
from assay.serving.openai.file_upload import (
    LONGEST_S,
    PURPOSES,
    SHORTEST_S,
    ReceivedForm,
    check_filename,
    check_purpose,
    lifetime_s,
    missing,
    received,
)
from assay.serving.openai.objects import file_object
from assay.serving.openai.openapi import QUERY_CHECKED, declares
from assay.serving.openai.pages import page_of_resources

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": list(PURPOSES)},
        _ANCHOR: {"enum": ["created_at"]},
        _SECONDS: {"type": "integer", "minimum": SHORTEST_S, "maximum": LONGEST_S},
    },
}


def file_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["files"], dependencies=QUERY_CHECKED)

    @router.post("/files", openapi_extra=declares(form=_FORM))
    async def create(request: Request) -> dict[str, Any]:
        """Upload a file."""
        return file_object(await _uploaded(app, request, project_of(request)))

    @router.get("/files", openapi_extra=declares("after", "limit", "order", "purpose"))
    def list_files(request: Request) -> dict[str, Any]:
        """List files, newest first."""
        purpose = request.query_params.get("purpose")

        def shape(state: FileState) -> dict[str, Any] | None:
            return file_object(state.created) if purpose in (None, state.created.purpose) else None

        return page_of_resources(app.files, request, shape, limit=10_000, max_limit=10_000)

    @router.get("/files/{file_id}")
    def retrieve(request: Request, file_id: str) -> dict[str, Any]:
        """Retrieve a file."""
        return file_object(app.files.found(file_id, project_of(request)).created)

    @router.delete("/files/{file_id}")
    def delete(request: Request, file_id: str) -> dict[str, Any]:
        """Delete a file. Jobs that have validated it keep their dataset."""
        app.files.found(file_id, project_of(request))
        app.files.remove(file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    @router.get("/files/{file_id}/content", response_class=StreamingResponse)
    def content(request: Request, file_id: str) -> StreamingResponse:
        """Download a file, or a range of its bytes."""
        file = app.files.found(file_id, project_of(request)).created
        byte_range = _range_of(request, file)
        begin, end = byte_range or (0, file.num_bytes)
        blocks: Iterator[bytes] = app.files.blocks(file_id, begin, end)
        first = next(blocks, b"")  # errors show before the response starts
        headers = {"content-length": str(end - begin), "accept-ranges": "bytes", "etag": _etag(file)}
        if byte_range is not None:
            headers["content-range"] = f"bytes {begin}-{end - 1}/{file.num_bytes}"
        return StreamingResponse(
            chain((first,), blocks),
            206 if byte_range is not None else 200,
            media_type="application/octet-stream",
            headers=headers,
        )

    return router


def _etag(file: FileCreated) -> str:
    return f'"{file.sha256}"'


def _range_of(request: Request, file: FileCreated) -> tuple[int, int] | None:
    """Return begin and end (exclusive) of the Range header; None for the whole file."""
    text = request.headers.get("range")
    if text is None or request.headers.get("if-range", _etag(file)) != _etag(file):
        return None
    found = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", text.replace(" ", ""), re.ASCII)
    if found is None or not (found[1] or found[2]) or (found[1] and found[2] and int(found[1]) > int(found[2])):
        raise ApiError(
            f"Range must be 'bytes=FIRST-LAST', 'bytes=FIRST-' or 'bytes=-LENGTH', not {text!r:.80}.",
            param="range",
            code="invalid_value",
        )
    size = file.num_bytes
    begin = int(found[1]) if found[1] else max(0, size - int(found[2]))
    end = min(size, int(found[2]) + 1) if found[1] and found[2] else size
    if begin >= end:
        raise ApiError(
            f"The file has {size:,} bytes, so the range {text!r:.80} is empty.",
            status=416,
            param="range",
            code="range_not_satisfiable",
            headers={"content-range": f"bytes */{size}"},
        )
    return begin, end


async def _uploaded(app: AppState, request: Request, project: str) -> FileCreated:
    file_id = new_id("file", app.clock.now_s())
    with app.storage.reserve(project, "file") as take:
        created = await received(
            request,
            "file",
            lambda: app.files.sink(file_id),
            lambda form: _checked(app, form, project=project, file_id=file_id),
            take,
        )
        file = (await run_in_threadpool(app.files.create_once, created, retry_of(request))).created
        await run_in_threadpool(app.files.drop, created.content, file)  # a retry gets the first request's file
        return file


def _checked(app: AppState, form: ReceivedForm, *, project: str, file_id: str) -> FileCreated:
    fields, sink = form.fields, form.sink
    if unknown := sorted(set(fields) - {"purpose", _ANCHOR, _SECONDS}):
        raise ApiError(f"Unknown parameter: '{unknown[0]:.80}'.", param=unknown[0], code="unknown_parameter")
    if "purpose" not in fields:
        raise missing("purpose")
    check_purpose(purpose := fields["purpose"])
    check_filename(form.filename, "file")
    now_s = app.clock.now_s()
    expires = _ANCHOR in fields or _SECONDS in fields
    lifetime = lifetime_s(fields.get(_ANCHOR), fields.get(_SECONDS, "")) if expires else None
    parts = [form.filename, purpose, lifetime, sink.sha256]
    return FileCreated(
        file_id=file_id,
        project=project,
        at_s=now_s,
        filename=form.filename,
        purpose=purpose,
        num_bytes=sink.num_bytes,
        sha256=sink.sha256,
        expires_s=None if lifetime is None else now_s + lifetime,
        request_sha256=request_sha256(project, "files.create", parts),
        content=file_id,
    )
