"""Opens SQLite databases of other tools for reading."""

import sqlite3
from pathlib import Path

from assay.base.errors import DataError

WAIT_S = 10.0
"""How long to wait for a tool that writes to its database."""


def opened(path: Path) -> sqlite3.Connection:
    """Open a database read-only. Raises `DataError` if it is none."""
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=WAIT_S)
        database.text_factory = lambda octets: octets.decode("utf-8", "replace")
        database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        raise DataError(f"{path}: not a readable SQLite database: {error}.") from error
    return database


def columns_of(database: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a table; an empty set if there is none."""
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
