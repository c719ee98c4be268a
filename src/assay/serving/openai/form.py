"""A multipart form as it comes in: small fields are kept, a file's bytes are handed on block by block."""

from typing import NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from assay.serving.refusal import RefusedError

MAX_FIELD_BYTES = 64 << 10
MAX_PARTS = 32


class FilePart(NamedTuple):
    """A part with a file's name begins; what follows is its bytes."""

    name: str
    filename: str


class FormStream:
    """Takes the body in blocks of any size; `fields` holds the parts that are no files."""

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise RefusedError("Expected a form: multipart/form-data with a boundary.", code="invalid_form")
        self.fields: dict[str, str] = {}
        self._found: list[FilePart | bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._field, self._value = b"", b""
        self._name: str | None = None
        """The name of a field that is being read; None in a file."""
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
        """What of files is in a block: their beginnings and their bytes, in order."""
        self._found = []
        try:
            self._parser.write(block)
        except FormParserError as error:
            raise RefusedError(f"The form cannot be read: {error}.", code="invalid_form") from None
        return self._found

    def finish(self) -> None:
        """Refuse a form that was cut short."""
        if not self._has_ended:
            raise RefusedError("The form was cut short: its last boundary is missing.", code="invalid_form")

    def _on_part_begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise RefusedError(f"The form has more than {MAX_PARTS} parts.", code="invalid_form")
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
            raise RefusedError(f"The form has two parts '{name:.80}'.", param=name, code="invalid_form")
        self._name, self._text = name, b""

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name is None:
            self._found.append(bytes(data[start:end]))
            return
        self._text += data[start:end]
        if len(self._text) > MAX_FIELD_BYTES:
            raise RefusedError(f"Part '{self._name:.80}' is too long.", param=self._name, code="invalid_form")

    def _on_part_end(self) -> None:
        if self._name is not None:
            try:
                self.fields[self._name] = self._text.decode()
            except UnicodeDecodeError:
                raise RefusedError(
                    f"Part '{self._name:.80}' is not UTF-8.", param=self._name, code="invalid_form"
                ) from None

    def _on_end(self) -> None:
        self._has_ended = True
