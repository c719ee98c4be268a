"""All that a ledger holds, as values that can be compared, whatever its database."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import sqlalchemy

from assay.store.home import Home
from assay.store.ledger import tables
from assay.store.ledger.ledger import Ledger
from record_kinds import record_kinds

Rows = dict[str, list[tuple[Any, ...]]]


def all_rows(ledger: Ledger) -> Rows:
    """Table -> its rows in order. Series are named by what they are of, not by their surrogate key; records are
    as today's code writes them."""
    with ledger.reading() as connection:
        series = {
            row.series_id: (row.run_id, row.attempt, row.rank, row.name)
            for row in connection.execute(sqlalchemy.select(tables.metric_series))
        }
        return {
            table.name: sorted(
                (
                    tuple(_value(name, value, series) for name, value in row._mapping.items())
                    for row in connection.execute(sqlalchemy.select(table))
                ),
                key=repr,
            )
            for table in tables.metadata.sorted_tables
        }


@contextmanager
def locked(home: Home) -> Iterator[None]:
    """While another process holds the write lock of the home's SQLite file, and does not let go."""
    path = home.ledger_file()
    assert path is not None
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


def empty(ledger: Ledger) -> None:
    """As if the database had been lost; the tables stay."""
    with ledger.writing() as connection:
        for table in tables.metadata.sorted_tables:
            if table is not tables.layout:
                connection.execute(table.delete())


def copy(source: Ledger, to: Ledger) -> None:
    """Every row as it is."""
    with source.reading() as old, to.writing() as new:
        for table in tables.metadata.sorted_tables:
            rows = [
                {column.key: row._mapping[column] for column in table.columns}
                for row in old.execute(sqlalchemy.select(table))
            ]
            if rows and table is not tables.layout:
                new.execute(table.insert(), rows)


def _value(column: str, value: Any, series: dict[int, tuple[Any, ...]]) -> Any:
    if column == "series_id":
        return series[value]
    if column == "record":
        kind = record_kinds()[json.loads(value)["kind"]]
        return kind.from_json(value, source="ledger").to_json()
    return value
