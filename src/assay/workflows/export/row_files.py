"""Reads rows from a file and writes rows to another, in batches: CSV, TSV, JSON lines or Parquet by suffix, or
JSON lines on stdout.

The output file appears when everything is written, and replaces an existing one.
"""

import csv
import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from assay.base.errors import ConfigError, DataError, unwritten
from assay.data.dataset.formats.rows import FIELDS
from assay.data.dataset.raw.find import iter_spans
from assay.data.dataset.raw.propose import likely_text
from assay.data.dataset.raw.span import Row
from assay.records.dataset import Format

FIRST_ROWS = 512
"""Number of rows used to guess the text column."""
REWARD_FORMATS: tuple[Format, ...] = ("pairs", "chat")
"""Formats that a reward model accepts, besides texts."""
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
HELD_BACK = 32_768
"""Rows to hold back at most until every column has a value: Parquet needs the types first."""


def check_text_column(file: Path, name: str) -> None:
    """Raise `DataError` if the first row has neither this column nor the fields of a reward model's formats."""
    if not file.is_file():  # a pipe can be read only once
        return
    rows = (row for span in iter_spans([file], FIRST_ROWS) for row in span.rows())
    part = list(itertools.islice(rows, FIRST_ROWS))
    for where, row in part[:1]:
        roots = {column.partition(".")[0] for column in row}
        if name not in row and not any(roots.issuperset(fields) for kind in REWARD_FORMATS for fields in FIELDS[kind]):
            text_of(row, name, where, part)


def text_of(row: Row, name: str, where: str, part: Sequence[tuple[str, Row]]) -> str:
    """Return the text of a row; empty if it is missing or blank, as in `assay data build`."""
    if name not in row:
        columns = {column: [other[column] for _, other in part if other.get(column)] for column in row}
        likely = likely_text(columns) or "NAME"
        raise DataError(
            f"{of_header(where)}: no column '{name}'; it has {', '.join(row)}. Name that of the text: --text {likely}."
        )
    if row[name] is None:
        return ""
    if not isinstance(row[name], str):
        raise DataError(f"{where}: '{name}' is not text but {row[name]!r:.40}. Fix or drop the row.")
    return str(row[name]) if str(row[name]).strip() else ""


def of_header(where: str) -> str:
    """Return the location of a missing column: the file for a table, whose header lacks it; else the row."""
    file, at, _ = where.rpartition(": line ")
    return file if at and file.lower().endswith((".csv", ".tsv")) else where


class RowWriter(Protocol):
    """Writes rows in order."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write more rows."""
        ...


@contextmanager
def row_writer(path: Path | None) -> Iterator[RowWriter]:
    """Yield a writer for a file, or for stdout."""
    if path is None:
        yield _JsonLines(sys.stdout)
        return
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"-o {path}: unknown suffix; expected {', '.join(SUFFIXES)}.")
    unfinished = path.with_name(f".unfinished-{path.name}")
    try:
        if suffix == ".parquet":
            with unfinished.open("wb") as data, _Parquet(data, path) as writer:
                yield writer
        else:
            with unfinished.open("w", encoding="utf-8", newline="") as text:
                yield _JsonLines(text) if suffix == ".jsonl" else _Delimited(text, path, suffix)
        unfinished.replace(path)
    except OSError as error:
        raise unwritten(path, error) from error
    finally:
        unfinished.unlink(missing_ok=True)


class _JsonLines:
    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            plain = {name: _plain(value) for name, value in row.items()}
            self._file.write(json.dumps(plain, ensure_ascii=False, default=str) + "\n")


class _Delimited:
    def __init__(self, file: IO[str], path: Path, suffix: str) -> None:
        self._writer = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n")
        self._path = path
        self._header: list[str] = []

    def write(self, rows: Sequence[Row]) -> None:
        if not self._header:
            self._header = list(dict.fromkeys(name for row in rows for name in row))
            self._writer.writerow(self._header)
        for row in rows:
            if others := row.keys() - set(self._header):
                raise DataError(_not_uniform(self._path, f"column '{min(others)}' comes up late"))
            self._writer.writerow([row.get(name) for name in self._header])


class _Parquet:
    """Writes Parquet; holds rows back until each column has shown its type, at most `HELD_BACK`."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._held: list[Row] = []
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> "_Parquet":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self._held and kind is None:
                self._begin()
        finally:
            if self._writer is not None:
                self._writer.close()

    def write(self, rows: Sequence[Row]) -> None:
        if self._writer is None:
            self._held += rows
            if len(self._held) >= HELD_BACK or _shows_all_types(self._held):
                self._begin()
            return
        if late := {name for row in rows for name in row} - set(self._writer.schema.names):
            raise DataError(_not_uniform(self._path, f"column '{min(late)}' comes up late"))
        with self._uniform():
            self._writer.write_table(pa.Table.from_pylist(list(rows), schema=self._writer.schema))

    def _begin(self) -> None:
        names = dict.fromkeys(name for row in self._held for name in row)
        with self._uniform():
            table = pa.table({name: pa.array([row.get(name) for row in self._held]) for name in names})
            self._writer = pq.ParquetWriter(self._file, table.schema, compression="zstd")
            self._writer.write_table(table)
        self._held = []

    @contextmanager
    def _uniform(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, TypeError) as error:
            raise DataError(_not_uniform(self._path, str(error))) from error


def _shows_all_types(rows: Sequence[Row]) -> bool:
    shown = {name for row in rows for name, value in row.items() if value is not None}
    return all(name in shown for row in rows for name in row)


def _not_uniform(path: Path, why: str) -> str:
    lines = path.with_suffix(".jsonl")
    return f"{path}: the rows have different columns or types ({why}). Write JSON lines: --out {lines}."


def _plain(value: Any) -> Any:
    """Return None for NaN and infinity, which JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
