"""Rows into a file, some at a time: CSV, TSV, JSON lines or Parquet by its suffix, or JSON lines on stdout.

The file appears when all is written, in the place of one that was there.
"""

import csv
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from assay.base.errors import ConfigError, DataError, StoreError
from assay.data.dataset.raw.span import Row

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
HELD_BACK = 32_768
"""Rows in which a column that is still empty may show the type that Parquet wants to know first."""


class RowWriter(Protocol):
    """Takes rows in their order."""

    def write(self, rows: Sequence[Row]) -> None:
        """Some more."""
        ...


@contextmanager
def row_writer(path: Path | None) -> Iterator[RowWriter]:
    """The writer of a file, or of stdout."""
    if path is None:
        yield _JsonLines(sys.stdout)
        return
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"-o {path}: the suffix says what is written: {', '.join(SUFFIXES)}.")
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
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}.") from error
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
    """Holds the first rows back until each column has shown its type, at most `HELD_BACK` of them."""

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
        with self._alike():
            self._writer.write_table(pa.Table.from_pylist(list(rows), schema=self._writer.schema))

    def _begin(self) -> None:
        names = dict.fromkeys(name for row in self._held for name in row)
        with self._alike():
            table = pa.table({name: pa.array([row.get(name) for row in self._held]) for name in names})
            self._writer = pq.ParquetWriter(self._file, table.schema, compression="zstd")
            self._writer.write_table(table)
        self._held = []

    @contextmanager
    def _alike(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, TypeError) as error:
            raise DataError(_not_uniform(self._path, str(error))) from error


def _shows_all_types(rows: Sequence[Row]) -> bool:
    shown = {name for row in rows for name, value in row.items() if value is not None}
    return all(name in shown for row in rows for name in row)


def _not_uniform(path: Path, why: str) -> str:
    return f"{path}: the rows are not all alike ({why}). Write JSON lines: -o {path.with_suffix('.jsonl')}."


def _plain(value: Any) -> Any:
    """JSON knows no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
