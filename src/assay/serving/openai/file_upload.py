"""Receives a file or a part: bytes are streamed into the store, and the form is validated before they are kept."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from assay.serving.api_error import ApiError
from assay.serving.blob_references import ByteSink
from assay.serving.openai.form import FilePart, FormStream

PURPOSES = ("fine-tune", "evals", "batch", "user_data")
SHORTEST_S, LONGEST_S = 3600, 2_592_000
"""Limits of `expires_after`, as in the hosted API: an hour and thirty days."""
MAX_FILENAME = 255


ResultT = TypeVar("ResultT")


class ReceivedForm(NamedTuple):
    """A form with one file, completely read."""

    fields: dict[str, str]
    filename: str
    sink: ByteSink


async def received(
    request: Request,
    name: str,
    open_sink: Callable[[], ByteSink],
    read: Callable[[ReceivedForm], ResultT],
    take: Callable[[int], None],
    *,
    max_bytes: int | None = None,
) -> ResultT:
    """Return the result of `read` for a form whose file field is `name`, once its bytes are durable.

    If the form is invalid, no bytes remain. `take` is called with the number of bytes before they are written.
    """
    form = FormStream(request.headers.get("content-type", ""))
    sink: ByteSink | None = None
    filename = ""
    try:
        async for block in request.stream():
            for found in form.feed(block):
                if isinstance(found, FilePart):
                    if sink is not None or found.name != name:
                        raise ApiError(
                            f"The form must have one file, '{name}', but it also has '{found.name:.80}'.", param=name
                        )
                    filename = found.filename
                    sink = await run_in_threadpool(open_sink)
                else:
                    assert sink is not None, "a file's bytes follow its beginning"
                    await run_in_threadpool(_write, sink, found, take)
                    if max_bytes is not None and sink.num_bytes > max_bytes:
                        raise ApiError(
                            f"'{name}' has more than {max_bytes:,} bytes. Send smaller parts.",
                            param=name,
                            code="too_large",
                        )
        form.finish()
        if sink is None:
            raise missing(name)
        result = read(ReceivedForm(form.fields, filename, sink))
    except BaseException as error:
        if sink is not None:
            sink.abort(error)
        raise
    await run_in_threadpool(sink.finish)
    return result


def _write(sink: ByteSink, block: bytes, take: Callable[[int], None]) -> None:
    take(len(block))
    sink.write(block)


def missing(name: str) -> ApiError:
    """400 for a missing parameter."""
    return ApiError(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")


def check_purpose(purpose: str) -> None:
    """Raise `ApiError` for an unknown purpose."""
    if purpose not in PURPOSES:
        raise ApiError(
            f"purpose must be one of {', '.join(PURPOSES)}, not {purpose!r:.60}.", param="purpose", code="invalid_value"
        )


def check_filename(filename: str, param: str) -> None:
    """Raise `ApiError` for an empty, too long or unprintable name."""
    if not filename or len(filename) > MAX_FILENAME or not filename.isprintable():
        raise ApiError(
            f"The file's name must have 1 to {MAX_FILENAME} printable characters.", param=param, code="invalid_value"
        )


def lifetime_s(anchor: str | None, seconds: str | int, where: str = "expires_after") -> int:
    """Parse `expires_after`; `where`: its location in the request."""
    if anchor != "created_at":
        raise ApiError(f"{where}.anchor must be 'created_at'.", param=f"{where}.anchor", code="invalid_value")
    text = str(seconds)
    if not (text.isascii() and text.isdigit() and len(text) < 9 and SHORTEST_S <= int(text) <= LONGEST_S):
        raise ApiError(
            f"{where}.seconds must be an integer from {SHORTEST_S:,} to {LONGEST_S:,}, not {text!r:.40}.",
            param=f"{where}.seconds",
            code="invalid_value",
        )
    return int(text)
