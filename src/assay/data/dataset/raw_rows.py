"""Rows before they are tokens: where they lie in JSON lines and text files, and reading a stretch of them.

    rows.jsonl    a JSON object a line
    notes.txt     a row a line, in the field `text`; blank lines are left out
    folder/       a row a *.txt file below it: `text`, its `path`, and the `folder` that it lies in

A span is what becomes one shard. Finding the spans reads each file once and parses nothing, so that processes
can then start in the middle of a large file.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from assay.base.digest import sha256_of_bytes, sha256_of_json, sha256_of_parts
from assay.base.errors import DataError
from assay.data.dataset.source_files import text_paths

Row = dict[str, Any]
BLOCK_BYTES = 8 * 1024 * 1024
TEXT_SUFFIX = ".txt"


@dataclass(frozen=True)
class Lines:
    """Consecutive lines of a file."""

    source: Path
    first_line: int
    """From 1."""
    start: int
    """The first line's first byte."""
    stop: int

    def digest(self) -> str:
        """The digest of these rows' bytes: wherever the file lies, the same rows have the same name."""
        return sha256_of_parts(chain([self.source.suffix.encode()], self._blocks()))

    def _blocks(self) -> Iterator[bytes]:
        with self.source.open("rb") as file:
            for place in range(file.seek(self.start), self.stop, BLOCK_BYTES):
                yield file.read(min(BLOCK_BYTES, self.stop - place))

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Each row with where it is, for messages."""
        is_text = self.source.suffix == TEXT_SUFFIX
        with self.source.open("rb") as file:
            place = file.seek(self.start)
            for number, line in enumerate(file, start=self.first_line):
                place += len(line)
                where = f"{self.source}: line {number}"
                text = _decoded(line, where, unit="line")
                if not is_text:
                    yield where, _parsed(text, where)
                elif text.strip():
                    yield where, {"text": text.rstrip("\r\n")}
                if place >= self.stop:
                    return


@dataclass(frozen=True)
class Files:
    """Some text files of a folder."""

    source: Path
    paths: tuple[str, ...]
    """Relative to `source`."""

    def digest(self) -> str:
        """The digest of these rows: the files' bytes, and their names as far as rows hold them."""
        files = [(path, self.source / path) for path in self.paths]
        return sha256_of_json(
            [[path, file.parent.name, sha256_of_bytes(file.read_bytes())] for path, file in files]
        )

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Each row with where it is, for messages."""
        for path in self.paths:
            file = self.source / path
            text = _decoded(file.read_bytes(), str(file), unit="file")
            yield str(file), {"text": text, "path": path, "folder": file.parent.name}


Span = Lines | Files


def find_spans(sources: Sequence[Path], rows_per_span: int) -> list[Span]:
    """Cut the sources into spans of `rows_per_span` lines or files; the last of each source is shorter."""
    spans: list[Span] = []
    for source in sources:
        try:
            found = (
                _folder_spans(source, rows_per_span) if source.is_dir() else _line_spans(source, rows_per_span)
            )
            spans.extend(found)
        except OSError as error:
            raise DataError(f"{source}: cannot be read: {error.strerror}. Check the path.") from error
    return spans


def _folder_spans(folder: Path, rows_per_span: int) -> Iterator[Files]:
    paths = text_paths(folder, TEXT_SUFFIX)
    if not paths:
        raise DataError(
            f"{folder}: no *{TEXT_SUFFIX} file there. Name a folder of texts, or files of JSON lines."
        )
    for first in range(0, len(paths), rows_per_span):
        yield Files(folder, tuple(paths[first : first + rows_per_span]))


def _line_spans(source: Path, rows_per_span: int) -> Iterator[Lines]:
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


def _decoded(data: bytes, where: str, *, unit: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 (byte {error.start} of the {unit} is 0x{data[error.start]:02x}). Convert the "
            "file: iconv -f <its encoding> -t utf-8."
        ) from error


def _parsed(text: str, where: str) -> Row:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}. Mend or drop the line.") from error
    except RecursionError as error:
        raise DataError(
            f"{where}: lists or objects in one another a thousand deep. Flatten the row."
        ) from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(row).__name__}.")
    return row
