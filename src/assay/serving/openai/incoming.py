"""A file on its way in, whole or in part: its bytes go into the store while they come, and what its form says
is checked before they are kept."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from assay.serving.blob_references import ByteSink
from assay.serving.openai.form import FilePart, FormStream
from assay.serving.refusal import RefusedError

PURPOSES = ("fine-tune", "evals", "batch", "user_data")
SHORTEST_S, LONGEST_S = 3600, 2_592_000
"""The limits of `expires_after`, as the hosted API has it: an hour, thirty days."""
MAX_FILENAME = 255


ResultT = TypeVar("ResultT")


class Received(NamedTuple):
    """A form with one file, read to its end."""

    fields: dict[str, str]
    filename: str
    sink: ByteSink


async def received(
    request: Request,
    name: str,
    open_sink: Callable[[], ByteSink],
    read: Callable[[Received], ResultT],
    take: Callable[[int], None],
    *,
    max_bytes: int | None = None,
) -> ResultT:
    """What `read` makes of a form whose file is called `name`, once the bytes are durable; what it refuses, or
    the form does, leaves nothing behind. `take` is called with the number of bytes before they are written."""
    form = FormStream(request.headers.get("content-type", ""))
    sink: ByteSink | None = None
    filename = ""
    try:
        async for block in request.stream():
            for found in form.feed(block):
                if isinstance(found, FilePart):
                    if sink is not None or found.name != name:
                        raise RefusedError(
                            f"The form has one file, '{name}'; this is another: '{found.name:.80}'.", param=name
                        )
                    filename = found.filename
                    sink = await run_in_threadpool(open_sink)
                else:
                    assert sink is not None, "a file's bytes follow its beginning"
                    await run_in_threadpool(_write, sink, found, take)
                    if max_bytes is not None and sink.num_bytes > max_bytes:
                        raise RefusedError(
                            f"'{name}' has more than {max_bytes:,} bytes. Send more, and smaller ones.",
                            param=name,
                            code="too_large",
                        )
        form.finish()
        if sink is None:
            raise missing(name)
        result = read(Received(form.fields, filename, sink))
    except BaseException as error:
        if sink is not None:
            sink.abandon(error)
        raise
    await run_in_threadpool(sink.finish)
    return result


def _write(sink: ByteSink, block: bytes, take: Callable[[int], None]) -> None:
    take(len(block))
    sink.write(block)


def missing(name: str) -> RefusedError:
    """A parameter that has to be there is not."""
    return RefusedError(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")


def check_purpose(purpose: str) -> None:
    """Refuse what no file is for."""
    if purpose not in PURPOSES:
        raise RefusedError(
            f"purpose is one of {', '.join(PURPOSES)}, not {purpose!r:.60}.",
            param="purpose",
            code="invalid_value",
        )


def check_filename(filename: str, param: str) -> None:
    """Refuse what nobody could read."""
    if not filename or len(filename) > MAX_FILENAME or not filename.isprintable():
        raise RefusedError(
            f"The file's name must have 1 to {MAX_FILENAME} printable characters.",
            param=param,
            code="invalid_value",
        )


def lifetime_s(anchor: str | None, seconds: str | int, where: str = "expires_after") -> int:
    """How long a file lives, as `expires_after` says it; `where` that stands."""
    if anchor != "created_at":
        raise RefusedError(
            f"{where}.anchor must be 'created_at'.", param=f"{where}.anchor", code="invalid_value"
        )
    text = str(seconds)
    if not (text.isascii() and text.isdigit() and len(text) < 9 and SHORTEST_S <= int(text) <= LONGEST_S):
        raise RefusedError(
            f"{where}.seconds is a whole number from {SHORTEST_S:,} to {LONGEST_S:,}, not {text!r:.40}.",
            param=f"{where}.seconds",
            code="invalid_value",
        )
    return int(text)
