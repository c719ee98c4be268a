"""Receives a file or a part: bytes are streamed into the store, and the form is validated before they are kept."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool

from assay.serving.api_error import ApiError
from assay.serving.blob_references import ByteSink

MAX_FIELD_BYTES = 64 << 10
MAX_PARTS = 32


class FilePart(NamedTuple):
    """Start of a file part; its bytes follow."""

    name: str
    filename: str


class FormStream:
    """Parses a body in blocks of any size; `fields` holds the parts that are not files."""

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise ApiError("Expected a form: multipart/form-data with a boundary.", code="invalid_form")
        self.fields: dict[str, str] = {}
        self._found: list[FilePart | bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._field, self._value = b"", b""
        self._name: str | None = None
        """Name of the current field; None in a file."""
        self._text = b""
        self._num_parts = 0
        self._has_ended = False
        self._parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    def feed(self, block: bytes) -> list[FilePart | bytes]:
        """Return the file parts and file bytes of a block, in order."""
        self._found = []
        try:
            self._parser.write(block)
        except FormParserError as error:
            raise ApiError(f"The form cannot be read: {error}.", code="invalid_form") from None
        return self._found

    def finish(self) -> None:
        """Raise `ApiError` if the form was truncated."""
        if not self._has_ended:
            raise ApiError("The form is truncated: its last boundary is missing.", code="invalid_form")

    def _on_part_begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise ApiError(f"The form has more than {MAX_PARTS} parts.", code="invalid_form")
        self._headers = {}

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field, self._value = b"", b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name", b"").decode(errors="replace")
        if b"filename" in options:
            self._name = None
            self._found.append(FilePart(name, options[b"filename"].decode(errors="replace")))
            return
        if name in self.fields:
            raise ApiError(f"The form has two parts '{name:.80}'.", param=name, code="invalid_form")
        self._name, self._text = name, b""

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name is None:
            self._found.append(bytes(data[start:end]))
            return
        self._text += data[start:end]
        if len(self._text) > MAX_FIELD_BYTES:
            raise ApiError(f"Part '{self._name:.80}' is too long.", param=self._name, code="invalid_form")

    def _on_part_end(self) -> None:
        if self._name is not None:
            try:
                self.fields[self._name] = self._text.decode()
            except UnicodeDecodeError:
                raise ApiError(
                    f"Part '{self._name:.80}' is not UTF-8.", param=self._name, code="invalid_form"
                ) from None

    def _on_end(self) -> None:
        self._has_ended = True


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
