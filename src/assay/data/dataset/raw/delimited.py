"""Reads CSV and TSV: a header, then one row per record; quoted values may contain line breaks.

All values are text; the type of a column is inferred from all of its values (`type_inference`). Finding the spans
parses the whole file once, because only a parser can tell a line break inside quotes from the end of a row.
"""

import csv
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from assay.base.digest import sha256_of_bytes, sha256_of_parts
from assay.base.errors import DataError
from assay.base.units import number_of
from assay.data.dataset.raw.lines import blocks_between, decoded
from assay.data.dataset.raw.span import Row, RowErrorHandler

DELIMITERS = {".tsv": "\t", ".csv": ",;\t|"}
"""Delimiters by suffix; among several, the most frequent one in the header is used."""
_LONGEST_FIELD = 2**30
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Delimited:
    """A span of records of a file."""

    source: Path
    header: tuple[str, ...]
    delimiter: str
    first_line: int
    """From 1."""
    start: int
    """Byte offset of the first record."""
    stop: int

    @property
    def is_untyped(self) -> bool:
        return True

    @property
    def fields(self) -> tuple[str, ...]:
        return self.header

    def digest(self, columns: Collection[str] = ()) -> str:  # noqa: ARG002
        head = "\x1f".join((self.delimiter, *self.header)).encode()
        return sha256_of_parts(
            chain([sha256_of_bytes(head).encode()], blocks_between(self.source, self.start, self.stop))
        )

    def rows(
        self,
        columns: Collection[str] | None = None,  # noqa: ARG002
        on_error: RowErrorHandler | None = None,
    ) -> Iterator[tuple[str, Row]]:
        for record in _records(self.source, self.delimiter, self.start, self.first_line):
            if record.start >= self.stop:
                return
            if len(record.values) != len(self.header):
                error = DataError(
                    f"{record.where}: {number_of(len(record.values), 'value')}, and the header names "
                    f"{len(self.header)}. A text that holds the delimiter or a line break stands between "
                    "quotes, and a quote in it is "
                    "doubled."
                )
                if on_error is None:
                    raise error
                on_error(error)
                continue
            yield (record.where, {name: value or None for name, value in zip(self.header, record.values, strict=True)})


def delimited_spans(source: Path, rows_per_span: int) -> Iterator[Delimited]:
    """Yield the spans of a file. Raises `DataError` if it has no rows or a bad header."""
    delimiter = _delimiter_of(source)
    records = _records(source, delimiter, 0, 1)
    head = next(records, None)
    if head is None:
        raise DataError(f"{source}: is empty. Leave it out, or write it again.")
    header = tuple(name.strip() for name in head.values)
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice or "" in header:
        found = f"names '{twice[0]}' twice" if twice else "has a column without a name"
        raise DataError(
            f"{source}: its first line, the header, {found}: {delimiter.join(header)[:200]}. Name each column "
            "once, in the first line."
        )
    first, stop, count = None, 0, 0
    for record in records:
        first = first or record
        count, stop = count + 1, record.stop
        if count == rows_per_span:
            yield Delimited(source, header, delimiter, first.line, first.start, stop)
            first, count = None, 0
    if first is not None:
        yield Delimited(source, header, delimiter, first.line, first.start, stop)
    elif not stop:
        raise DataError(f"{source}: has a header and no rows. Leave it out, or write it again.")


@dataclass(frozen=True)
class _Record:
    where: str
    values: list[str]
    line: int
    start: int
    stop: int


class _CountedLines:
    """Decoded lines of a file from a byte offset; tracks the offset while `csv` reads them."""

    def __init__(self, file: BinaryIO, source: Path, start: int, first_line: int) -> None:
        self._file, self._source = file, source
        self.position, self.line = file.seek(start), first_line - 1

    def __iter__(self) -> Iterator[str]:
        for data in self._file:
            is_first = self.position == 0
            self.position += len(data)
            self.line += 1
            text = data.removeprefix(_BYTE_ORDER_MARK) if is_first else data
            yield decoded(text, f"{self._source}: line {self.line}", unit="line")


def _records(source: Path, delimiter: str, start: int, first_line: int) -> Iterator[_Record]:
    csv.field_size_limit(_LONGEST_FIELD)
    with source.open("rb") as file:
        lines = _CountedLines(file, source, start, first_line)
        reader = csv.reader(iter(lines), delimiter=delimiter, strict=True)
        while True:
            begin, line = lines.position, lines.line + 1
            where = f"{source}: line {line}"
            try:
                values = next(reader, None)
            except csv.Error as error:
                raise DataError(
                    f"{where}: not CSV: {error}. A text between quotes ends with a quote, and a quote in it is doubled."
                ) from error
            if values is None:
                return
            if values:
                yield _Record(where, values, line, begin, lines.position)


def _delimiter_of(source: Path) -> str:
    with source.open("rb") as file:
        head = file.readline().decode(errors="replace")
    candidates = DELIMITERS[source.suffix.lower()]
    return max(candidates, key=head.count)
