"""Opens SQLite databases of other tools for reading."""

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from assay.base.errors import DataError
from assay.trackers.importers.foreign_run import RunBuilder
from assay.trackers.importers.protobuf import text_of

WAIT_S = 10.0
"""How long to wait for a tool that writes to its database."""


def opened(path: Path) -> sqlite3.Connection:
    """Open a database read-only. Raises `DataError` if it is none."""
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=WAIT_S)
        database.text_factory = text_of
        database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    except (sqlite3.Error, UnicodeError) as error:  # its messages may quote bytes that are no text
        raise DataError(f"{path}: not a readable SQLite database: {error}.") from error
    return database


def columns_of(database: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a table; an empty set if there is none."""
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


class TableReader(NamedTuple):
    """Reads what the tables of a database hold of one run."""

    database: sqlite3.Connection
    key: str
    """Column of the run's id."""
    run_id: object
    builder: RunBuilder

    def rows(self, columns: str, table: str) -> Iterator[tuple[Any, ...]]:
        """Yield rows in the order in which they were written; where a table is damaged, those before the damage."""
        if self.key not in columns_of(self.database, table):
            return
        query = f"SELECT {columns} FROM {table} WHERE {self.key} = ? ORDER BY rowid"
        try:
            yield from self.database.execute(query, (self.run_id,))
        except sqlite3.OperationalError:  # for example locked: another import reads it whole
            raise
        except (sqlite3.DatabaseError, UnicodeError):
            self.builder.leave_out("{} tables were damaged, and rows after the damage not read")

    def pairs(self, table: str) -> dict[str, str]:
        """Return a table of keys and values."""
        return {str(key): str(value) for key, value in self.rows("key, value", table)}

    def leave_out(self, tables: Mapping[str, str]) -> None:
        """Count the rows in tables that are not imported: table -> sentence."""
        for table, text in tables.items():
            for (num,) in self.rows("COUNT(*)", table):
                self.builder.leave_out(text, num)
