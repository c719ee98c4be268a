"""`files.*`: a file goes into the store while it comes in, and out of it while it goes out."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from assay.records.uploaded_file import FileCreated
from assay.serving.files import FileSink, FileState
from assay.serving.ids import new_id
from assay.serving.openai.bodies import request_sha256
from assay.serving.openai.declared import takes
from assay.serving.openai.form import FilePart, FormStream
from assay.serving.openai.pages import page_of_shelf
from assay.serving.openai.place import Place, asked_for, project_of, query_of
from assay.serving.openai.shapes import file_shape
from assay.serving.refusal import RefusedError, not_found
from assay.serving.repeats import AskedFor

PURPOSES = ("fine-tune", "evals", "batch", "user_data")
SHORTEST_S, LONGEST_S = 3600, 2_592_000
"""The limits of `expires_after`, as the hosted API has it: an hour, thirty days."""
MAX_FILENAME = 255
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


def file_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["files"])

    @router.post("/files", openapi_extra=takes(form=_FORM))
    async def create(request: Request) -> dict[str, Any]:
        """Upload a file."""
        query_of(request)
        return file_shape(await _uploaded(place, request, project_of(request)))

    @router.get("/files", openapi_extra=takes("after", "limit", "order", "purpose"))
    def list_files(request: Request) -> dict[str, Any]:
        """All files, the newest first."""
        query = query_of(request)
        project, purpose = project_of(request), query.get("purpose")

        def shown(file_id: str) -> dict[str, Any] | None:
            file = place.files.find(file_id, project)
            return file_shape(file) if file and purpose in (None, file.purpose) else None

        return page_of_shelf(place.files.shelf, project, shown, query, limit=10_000, max_limit=10_000)

    @router.get("/files/{file_id}")
    def retrieve(request: Request, file_id: str) -> dict[str, Any]:
        """One file."""
        query_of(request)
        return file_shape(_found(place, request, file_id))

    @router.delete("/files/{file_id}")
    def delete(request: Request, file_id: str) -> dict[str, Any]:
        """Delete a file. Jobs that have validated it keep what they made of it."""
        query_of(request)
        place.files.remove(_found(place, request, file_id).file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    @router.get("/files/{file_id}/content", response_class=StreamingResponse)
    def content(request: Request, file_id: str) -> StreamingResponse:
        """Its bytes."""
        query_of(request)
        file = _found(place, request, file_id)
        blocks: Iterator[bytes] = place.files.blocks(file_id)
        first = next(blocks, b"")  # what is wrong shows before the answer begins
        return StreamingResponse(
            chain((first,), blocks),
            media_type="application/octet-stream",
            headers={"content-length": str(file.num_bytes)},
        )

    return router


def _found(place: Place, request: Request, file_id: str) -> FileCreated:
    file = place.files.find(file_id, project_of(request))
    if file is None:
        raise not_found("file", file_id, param="file_id")
    return file


async def _uploaded(place: Place, request: Request, project: str) -> FileCreated:
    form = FormStream(request.headers.get("content-type", ""))
    file_id = new_id("file", place.clock.now_s())
    sink: FileSink | None = None
    filename = ""
    try:
        async for block in request.stream():
            for found in form.feed(block):
                if isinstance(found, FilePart):
                    if sink is not None or found.name != "file":
                        raise RefusedError(
                            f"The form has one file, 'file'; this is another: '{found.name:.80}'.", param="file"
                        )
                    filename = found.filename
                    sink = await run_in_threadpool(place.files.sink, file_id)
                else:
                    assert sink is not None, "a file's bytes follow its beginning"
                    await run_in_threadpool(sink.write, found)
        form.finish()
        created = _checked(place, form.fields, sink, filename, project=project, file_id=file_id)
    except BaseException as error:
        if sink is not None:
            sink.abandon(error)
        raise
    assert sink is not None, "a form without a file was refused"
    await run_in_threadpool(sink.finish)
    return await run_in_threadpool(_made, place, created, asked_for(request, created.request_sha256))


def _made(place: Place, created: FileCreated, asked: AskedFor) -> FileCreated:
    """The file, or the one that an earlier request for the same made; then these bytes are there already."""

    def make(file_id: str) -> FileState:
        return place.files.put(created.model_copy(update={"file_id": file_id}))

    made = place.file_repeats.made(asked, created.file_id, make).created
    if made.file_id != created.file_id:
        place.files.drop_content(created.file_id)
    return made


def _checked(
    place: Place,
    fields: dict[str, str],
    sink: FileSink | None,
    filename: str,
    *,
    project: str,
    file_id: str,
) -> FileCreated:
    if unknown := sorted(set(fields) - {"purpose", _ANCHOR, _SECONDS}):
        raise RefusedError(
            f"Unknown parameter: '{unknown[0]:.80}'.", param=unknown[0], code="unknown_parameter"
        )
    if sink is None:
        raise RefusedError(
            "Missing required parameter: 'file'.", param="file", code="missing_required_parameter"
        )
    if "purpose" not in fields:
        raise RefusedError(
            "Missing required parameter: 'purpose'.", param="purpose", code="missing_required_parameter"
        )
    if (purpose := fields["purpose"]) not in PURPOSES:
        raise RefusedError(
            f"purpose is one of {', '.join(PURPOSES)}, not {purpose!r:.60}.",
            param="purpose",
            code="invalid_value",
        )
    if not filename or len(filename) > MAX_FILENAME or not filename.isprintable():
        raise RefusedError(
            f"The file's name must have 1 to {MAX_FILENAME} printable characters.",
            param="file",
            code="invalid_value",
        )
    now_s = place.clock.now_s()
    lives_s = _lives_s(fields)
    parts = [filename, purpose, lives_s, sink.sha256]
    return FileCreated(
        file_id=file_id,
        project=project,
        at_s=now_s,
        filename=filename,
        purpose=purpose,
        num_bytes=sink.num_bytes,
        sha256=sink.sha256,
        expires_s=None if lives_s is None else now_s + lives_s,
        request_sha256=request_sha256(project, "files.create", parts),
    )


def _lives_s(fields: dict[str, str]) -> int | None:
    if _ANCHOR not in fields and _SECONDS not in fields:
        return None
    if fields.get(_ANCHOR) != "created_at":
        raise RefusedError(
            "expires_after.anchor must be 'created_at'.", param="expires_after.anchor", code="invalid_value"
        )
    text = fields.get(_SECONDS, "")
    if not (text.isascii() and text.isdigit() and len(text) < 9 and SHORTEST_S <= int(text) <= LONGEST_S):
        raise RefusedError(
            f"expires_after.seconds is a whole number from {SHORTEST_S:,} to {LONGEST_S:,}, not {text!r:.40}.",
            param="expires_after.seconds",
            code="invalid_value",
        )
    return int(text)
