"""Reads JSON lines, text files by line, and files that are one row each.

    rows.jsonl      one JSON object per line
    notes.txt       one row per line, in the field `text`
    page.md, ...    one row per file: `text`, its `path`, and the `folder` that contains it

Blank lines are skipped. Finding the spans reads a file once without parsing it, so that processes can start in
the middle of a large file.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from assay.base.digest import sha256_of_bytes, sha256_of_json, sha256_of_parts
from assay.base.errors import DataError
from assay.base.parsing.nesting import TooDeepError, parse_json
from assay.base.value_text import kind_text
from assay.data.dataset.raw.span import Row, RowErrorHandler

BLOCK_BYTES = 8 * 1024 * 1024
TEXT_SUFFIX = ".txt"
FIX_LINE = "Fix or drop the line."
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Lines:
    """A span of lines of a file."""

    source: Path
    first_line: int
    """From 1."""
    start: int
    """Byte offset of the first line."""
    stop: int

    @property
    def is_untyped(self) -> bool:
        return False

    @property
    def fields(self) -> tuple[str, ...] | None:
        return ("text",) if self.source.suffix == TEXT_SUFFIX else None

    def digest(self, columns: Collection[str] = ()) -> str:  # noqa: ARG002
        return sha256_of_parts(chain([self.source.suffix.encode()], blocks_between(self.source, self.start, self.stop)))

    def rows(
        self,
        columns: Collection[str] | None = None,  # noqa: ARG002
        on_error: RowErrorHandler | None = None,
    ) -> Iterator[tuple[str, Row]]:
        is_text = self.source.suffix == TEXT_SUFFIX
        with self.source.open("rb") as file:
            position = file.seek(self.start)
            for number, line in enumerate(file, start=self.first_line):
                position += len(line)
                where = f"{self.source}: line {number}"
                try:
                    row = _row_of(line, where, is_text=is_text, is_first=number == 1)
                except DataError as error:
                    if on_error is None:
                        raise
                    on_error(error)
                else:
                    if row is not None:
                        yield where, row
                if position >= self.stop:
                    return


@dataclass(frozen=True)
class Files:
    """A span of text files of a folder."""

    source: Path
    paths: tuple[str, ...]
    """Relative to `source`."""

    @property
    def is_untyped(self) -> bool:
        return False

    @property
    def fields(self) -> tuple[str, ...]:
        return ("text", "path", "folder")

    def digest(self, columns: Collection[str] = ()) -> str:  # noqa: ARG002
        files = [(path, self.source / path) for path in self.paths]
        return sha256_of_json([[path, file.parent.name, sha256_of_bytes(file.read_bytes())] for path, file in files])

    def rows(
        self,
        columns: Collection[str] | None = None,  # noqa: ARG002
        on_error: RowErrorHandler | None = None,
    ) -> Iterator[tuple[str, Row]]:
        for path in self.paths:
            file = self.source / path
            try:
                text = decoded(file.read_bytes(), str(file), unit="file")
            except DataError as error:
                if on_error is None:
                    raise
                on_error(error)
                continue
            yield str(file), {"text": text, "path": path, "folder": file.parent.name}


def line_spans(source: Path, rows_per_span: int) -> Iterator[Lines]:
    """Yield the spans of a file of JSON lines or text."""
    start = end = number = 0
    with source.open("rb") as file:
        for number, line in enumerate(file, start=1):
            end += len(line)
            if number % rows_per_span == 0:
                yield Lines(source, number - rows_per_span + 1, start, end)
                start = end
    if end == 0:
        raise DataError(f"{source}: is empty. Leave it out, or write it again.")
    if start < end:
        yield Lines(source, number - number % rows_per_span + 1, start, end)


def file_spans(folder: Path, paths: list[str], rows_per_span: int) -> Iterator[Files]:
    """Yield the spans of files that are one row each."""
    for first in range(0, len(paths), rows_per_span):
        yield Files(folder, tuple(paths[first : first + rows_per_span]))


def blocks_between(source: Path, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes of a file from `start` to `stop` in blocks."""
    with source.open("rb") as file:
        for position in range(file.seek(start), stop, BLOCK_BYTES):
            yield file.read(min(BLOCK_BYTES, stop - position))


def decoded(data: bytes, where: str, *, unit: str) -> str:
    """Decode UTF-8; the error names the first invalid byte."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 (byte {error.start} of the {unit} is 0x{data[error.start]:02x}). Convert the "
            "file: iconv -f <its encoding> -t utf-8."
        ) from error


def json_fault(error: ValueError) -> tuple[str, str]:
    """Return the column as `, column 19`, if known, and the problem, without the parser's own line number."""
    if isinstance(error, json.JSONDecodeError):
        what = error.msg.removesuffix(" at").removesuffix(" starting")
        return f", column {error.colno}", what[:1].lower() + what[1:]
    return "", "a whole number of thousands of digits"


def _row_of(line: bytes, where: str, *, is_text: bool, is_first: bool) -> Row | None:
    """Parse a line; None if blank. A byte order mark may begin a file, or each of several concatenated ones."""
    text = decoded(line, where, unit="line")
    if is_first or not is_text:
        text = text.removeprefix(_BYTE_ORDER_MARK)
    if not text.strip():
        return None
    text = text.rstrip("\r\n")
    return {"text": text} if is_text else _parsed(text, where)


def _parsed(text: str, where: str) -> Row:
    try:
        row = parse_json(text)
    except TooDeepError as error:
        raise DataError(f"{where}: {error}. Flatten the row.") from error
    except ValueError as error:
        hint = (
            "It looks like one JSON array: write an object a line (jq -c '.[]')."
            if text.lstrip().startswith("[")
            else FIX_LINE
        )
        column, what = json_fault(error)
        raise DataError(f"{where}{column}: not JSON: {what}. {hint}") from error
    if not isinstance(row, dict):
        raise DataError(
            f"{where}: expected a JSON object, found {kind_text(row)}. Write an object a line (of an "
            "array: jq -c '.[]')."
        )
    return row
