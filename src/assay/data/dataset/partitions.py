"""Columns that stand in a shard's path: `language=en/part-0.parquet`, as Hive, Spark and DuckDB write them."""

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

import pyarrow as pa

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def partition_values(path: str) -> dict[str, str | None]:
    """What the folders `name=value` on the way to a shard say of all its rows."""
    pairs = (part.partition("=") for part in path.split("/")[:-1])
    return {
        unquote(name): None if value == _NULL else unquote(value) for name, equals, value in pairs if name and equals
    }


def partition_schema(paths: Iterable[str]) -> pa.Schema:
    """Integers where each value is one, text otherwise."""
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
    """The table, and behind its columns those of `fields`, which the shard's path holds."""
    values = partition_values(path)
    columns = {name: table[name] for name in table.column_names}
    for field in fields:
        columns[field.name] = pa.repeat(pa.scalar(values[field.name]).cast(field.type), num_rows)
    return pa.table(columns)
