"""Hive partition columns, which are stored in shard paths: `language=en/part-0.parquet`."""

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

import pyarrow as pa

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def partition_values(path: str) -> dict[str, str | None]:
    """Return the values of the `name=value` folders in a shard's path."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {
        unquote(name): None if value == _NULL else unquote(value) for name, equals, value in pairs if name and equals
    }


def partition_schema(paths: Iterable[str]) -> pa.Schema:
    """Return the partition columns of some paths: integers if all values are, text otherwise."""
    values: dict[str, set[str]] = {}
    for path in paths:
        for name, value in partition_values(path).items():
            values.setdefault(name, set()).update(() if value is None else {value})
    return pa.schema(
        [
            pa.field(name, pa.int64() if some and all(map(_INTEGER.fullmatch, some)) else pa.string())
            for name, some in values.items()
        ]
    )


def with_partitions(table: pa.Table, path: str, fields: Sequence[pa.Field], num_rows: int) -> pa.Table:
    """Append the partition columns `fields` to a table."""
    values = partition_values(path)
    columns = {name: table[name] for name in table.column_names}
    for field in fields:
        columns[field.name] = pa.repeat(pa.scalar(values[field.name]).cast(field.type), num_rows)
    return pa.table(columns)
