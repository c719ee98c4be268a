"""Streaming parser of multipart forms: small fields are kept, file bytes are passed on."""

from typing import NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from assay.serving.api_error import ApiError

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
