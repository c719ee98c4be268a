"""All that a ledger holds, as values that can be compared, whatever its database."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from assay.records.run import Run
from assay.store.home import Home
from assay.store.ledger import tables
from assay.store.ledger.database import Connection
from assay.store.ledger.ledger import Ledger, insertion, open_ledger
from assay.workflows.bookkeeping import rebuild_run
from assay.workflows.rebuild import fold_in_missed
from record_kinds import record_kinds

Rows = dict[str, list[tuple[Any, ...]]]


def all_rows(ledger: Ledger) -> Rows:
    """Table -> its rows in order. Series are named by what they are of, not by their surrogate key; records are
    as today's code writes them."""
    with ledger.reading() as connection:
        named = connection.execute("SELECT series_id, run_id, attempt, rank, name FROM metric_series")
        series = {series_id: name for series_id, *name in named}
        return {
            table.name: sorted(
                (tuple(_value(name, value, series) for name, value in row.items()) for row in _rows(connection, table)),
                key=repr,
            )
            for table in tables.TABLES
            # Who wrote, and when, differs; caches depend on when they were filled.
            if table is not tables.writes and table.name not in tables.CACHES
        }


def rows_on_record(home: Home) -> Rows:
    """What the home's ledger holds, as the next command finds it."""
    with home.open_ledger() as ledger:
        assert not fold_in_missed(home, ledger)
        return all_rows(ledger)


def rows_of_folder(run: Run) -> Rows:
    """What a ledger holds that is made anew from a run's folder and store."""
    with TemporaryDirectory() as folder, open_ledger(f"sqlite:///{folder}/anew.db") as ledger:
        rebuild_run(ledger, run)
        return all_rows(ledger)


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
        for table in tables.TABLES:
            if table is not tables.layout:
                connection.execute(f"DELETE FROM {table.name}")


def copy(source: Ledger, to: Ledger) -> None:
    """Every row as it is."""
    with source.reading() as old, to.writing() as new:
        for table in tables.TABLES:
            rows = _rows(old, table)
            if rows and table is not tables.layout:
                new.execute_all(insertion(table, table.columns), rows)


def drop_tables(url: str) -> None:
    """Leave a PostgreSQL without tables of ours, whatever is in them."""
    with psycopg.connect(url) as connection:
        for table in tables.TABLES:
            connection.execute(f"DROP TABLE IF EXISTS {table.name}".encode())


def _rows(connection: Connection, table: tables.LedgerTable) -> list[dict[str, Any]]:
    found = connection.execute(f"SELECT {', '.join(table.columns)} FROM {table.name}")
    return [dict(zip(table.columns, row, strict=True)) for row in found]


def _value(column: str, value: Any, series: dict[int, list[Any]]) -> Any:
    if column == "series_id":
        return tuple(series[value])
    if column == "record":
        kind = record_kinds()[json.loads(value)["kind"]]
        return kind.from_json(value, source="ledger").to_json()
    return value
