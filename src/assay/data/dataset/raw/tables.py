"""Reads rows of Parquet and Arrow files, including files saved by `datasets`, batch by batch.

Values are converted to JSON types: times and dates become ISO 8601 text, decimals floats, categories their
values, and fields of structs get dotted names. Class indices become class names if the schema of `datasets` has
them (`ClassLabel`).
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assay.base.digest import sha256_of_parts
from assay.base.errors import DataError
from assay.base.parsing.nesting import parse_json
from assay.data.dataset.raw.span import Row, RowErrorHandler

ARROW_SUFFIXES = (".arrow", ".feather", ".ipc")
PARQUET_SUFFIX = ".parquet"
BATCH_ROWS = 1_000


@dataclass(frozen=True)
class TableRows:
    """A span of rows of a file."""

    source: Path
    first_row: int
    """From 0."""
    num_rows: int

    @property
    def is_untyped(self) -> bool:
        return False

    @cached_property
    def fields(self) -> tuple[str, ...]:
        with _opened(self.source) as table:
            return tuple(_flat(table.schema.empty_table()).column_names)

    def digest(self, columns: Collection[str]) -> str:
        batches = (batch for _, batch in self._batches(columns))
        return sha256_of_parts(part for batch in batches for part in _bytes_of(batch))

    def rows(
        self,
        columns: Collection[str] | None = None,
        on_error: RowErrorHandler | None = None,  # noqa: ARG002
    ) -> Iterator[tuple[str, Row]]:
        with _opened(self.source) as table:
            names = class_names(table.schema)
        for first, batch in self._batches(self.fields if columns is None else columns):
            try:
                values = {
                    name: _plain_values(column, names.get(name))
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                }
            except (pa.ArrowException, ValueError, OverflowError) as error:
                raise DataError(
                    f"{self.source}: row {first} and below: cannot be read: {error}. Leave the column out, or "
                    "write it with another type."
                ) from error
            for index in range(batch.num_rows):
                row = {name: column[index] for name, column in values.items()}
                yield f"{self.source}: row {first + index}", row

    def _batches(self, columns: Collection[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        roots = {name.partition(".")[0] for name in columns} | set(columns)
        stop = self.first_row + self.num_rows
        with _opened(self.source) as table:
            selected = [name for name in table.schema.names if name in roots]
            for first, batch in table.batches(selected, self.first_row):
                low, high = max(self.first_row - first, 0), min(stop - first, batch.num_rows)
                if low < high:
                    flat = _flat(pa.Table.from_batches([batch.slice(low, high - low)]))
                    columns_read = flat.select([name for name in flat.column_names if name in columns])
                    yield first + low, columns_read.combine_chunks().to_batches()[0]
                if first + batch.num_rows >= stop:
                    return


def table_spans(source: Path, rows_per_span: int) -> Iterator[TableRows]:
    """Yield the spans of a Parquet or Arrow file."""
    with _opened(source) as table:
        num_rows = table.num_rows()
    if not num_rows:
        raise DataError(f"{source}: has no rows. Leave it out, or write it again.")
    for first in range(0, num_rows, rows_per_span):
        yield TableRows(source, first, min(rows_per_span, num_rows - first))


def column_values(table: pa.Table) -> dict[str, list[Any]]:
    """Convert a table in memory to JSON values, by column."""
    names, flat = class_names(table.schema), _flat(table)
    return {
        name: _plain_values(flat[name].combine_chunks(), names.get(name)) if flat.num_rows else []
        for name in flat.column_names
    }


def class_names(schema: pa.Schema) -> dict[str, Sequence[str]]:
    """Return column -> class names, from the schema metadata of `datasets`."""
    try:
        info = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = info.get("info", {}).get("features", {})
        return {
            name: feature["names"]
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
        }
    except (ValueError, AttributeError):
        return {}


@contextmanager
def _opened(source: Path) -> Iterator["_ParquetTable | _ArrowTable"]:
    is_parquet = source.suffix.lower() == PARQUET_SUFFIX
    kind = "Parquet" if is_parquet else "Arrow"
    try:
        with pa.memory_map(str(source)) as file:
            yield _ParquetTable(file) if is_parquet else _ArrowTable(file)
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # errors of the disk; Arrow's own have no errno
            raise
        what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{source}: not readable as {kind}: {what}. Write the file again.") from error


class _ParquetTable:
    def __init__(self, file: pa.NativeFile) -> None:
        self._file = pq.ParquetFile(file, page_checksum_verification=True)
        self.schema = self._file.schema_arrow

    def num_rows(self) -> int:
        return int(self._file.metadata.num_rows)

    def batches(self, columns: list[str], first_row: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        metadata, first = self._file.metadata, 0
        for group in range(metadata.num_row_groups):
            num_rows = metadata.row_group(group).num_rows
            if first + num_rows > first_row:
                index = first
                try:
                    for batch in self._file.iter_batches(
                        BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False
                    ):
                        yield index, batch
                        index += batch.num_rows
                except (pa.ArrowException, OSError) as error:
                    if isinstance(error, OSError) and error.errno is not None:
                        raise
                    raise pa.ArrowInvalid(f"row group {group}: {error}") from error
            first += num_rows


class _ArrowTable:
    """The stream format, which `datasets` writes, or the file format; mapped, so skipping reads nothing."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self.schema: pa.Schema = self._reader().schema

    def num_rows(self) -> int:
        return sum(batch.num_rows for batch in self._all())

    def batches(self, columns: list[str], first_row: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        first = 0
        for batch in self._all():
            if first + batch.num_rows > first_row:
                batch.validate(full=True)  # offsets of a damaged file may point anywhere in memory
                for low in range(0, batch.num_rows, BATCH_ROWS):
                    yield first + low, batch.slice(low, BATCH_ROWS).select(columns)
            first += batch.num_rows

    def _all(self) -> Iterator[pa.RecordBatch]:
        reader = self._reader()
        if isinstance(reader, pa.RecordBatchFileReader):
            return (reader.get_batch(index) for index in range(reader.num_record_batches))
        return iter(reader)

    def _reader(self) -> Any:
        self._file.seek(0)
        is_file = self._file.read(6) == b"ARROW1"
        self._file.seek(0)
        return pa.ipc.open_file(self._file) if is_file else pa.ipc.open_stream(self._file)


def _flat(table: pa.Table) -> pa.Table:
    """Flatten structs to columns with dotted names."""
    while any(pa.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    return table


def _bytes_of(batch: pa.RecordBatch) -> Iterator[bytes | memoryview]:
    yield batch.schema.remove_metadata().serialize()
    yield memoryview(batch.serialize())


def _plain_values(column: pa.Array, names: Sequence[str] | None) -> list[Any]:
    kind, types = column.type, pa.types
    if types.is_dictionary(kind):
        return _plain_values(column.dictionary_decode(), names)
    if names is not None and types.is_integer(kind):
        return [names[index] if index is not None and 0 <= index < len(names) else None for index in column.to_pylist()]
    if types.is_decimal(kind):
        return list(column.cast(pa.float64()).to_pylist())
    if types.is_temporal(kind) and not types.is_duration(kind) and not types.is_interval(kind):
        return list(column.cast(pa.string()).to_pylist())
    if types.is_float16(kind):
        return list(column.cast(pa.float32()).to_pylist())
    return list(column.to_pylist())
