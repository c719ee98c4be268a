"""A ledger in a SQLite file.

It runs in WAL mode: readers and the one writer do not wait for each other. It syncs at checkpoints only
(`synchronous=NORMAL`): a power cut may take the last facts, never the file; they are in the run's folder still.
"""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from assay.base.errors import StoreError, unwritten
from assay.store.ledger import database, tables
from assay.store.ledger.database import Connection, Database, Values


class SqliteDatabase(Database):
    """A ledger in a SQLite file."""

    column_types: ClassVar = {tables.BYTES: "BLOB", tables.SERIAL: "INTEGER"}
    errors = (sqlite3.Error,)
    mistakes = (sqlite3.IntegrityError, sqlite3.ProgrammingError)
    operational = sqlite3.OperationalError
    schema = "main."

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritten(path, error, "Make its folder, or name another ledger in $ASSAY_LEDGER.") from error
        super().__init__(str(path))
        self._path = path

    def connected(self) -> "_SqliteSession":
        """Open a session."""
        return _SqliteSession(self._path)

    def table_names(self, connection: Connection) -> set[str]:
        """Return the names of existing tables."""
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def lock_creation(self, connection: Connection) -> None:
        """SQLite writers lock the whole file."""

    def is_away(self, reason: str) -> bool:
        """Return whether another process has locked it."""
        return "locked" in reason

    def refuse_vanished(self) -> None:
        """Raise `StoreError` if the file was deleted: an open connection would write to the unlinked file."""
        if not self._idle or self._path.exists():
            return
        self.close()
        self.make_tables()
        raise StoreError(
            f"ledger {self.shown}: the file is gone; a new one was made, without the older runs. "
            "'assay runs --rebuild' writes them down again from their folders."
        )


def copy_sqlite(file: Path, to: Path) -> None:
    """Copy a SQLite file, also from a read-only folder, where SQLite cannot create its WAL files."""
    for mode in ("mode=ro", "immutable=1"):
        try:
            with (
                closing(sqlite3.connect(f"{file.absolute().as_uri()}?{mode}", uri=True)) as whole,
                closing(sqlite3.connect(to)) as copy,
            ):
                whole.backup(copy)
                return
        except sqlite3.Error as error:
            reason = str(error)
    raise StoreError(f"ledger {file}: {reason}. {database.hint_for(reason)}")


class _SqliteSession:
    """A session for one thread at a time."""

    def __init__(self, path: Path) -> None:
        # The driver would begin transactions by itself, and too late.
        self._driver = sqlite3.connect(
            path,
            timeout=database.LOCKED_S,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            self._use_wal()
            self._driver.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            self._driver.close()
            raise

    def execute(self, statement: str, values: Values = {}) -> list[tuple[Any, ...]]:  # noqa: B006 (not changed)
        return self._driver.execute(statement, values).fetchall()

    def execute_all(self, statement: str, rows: Sequence[Values]) -> None:
        self._driver.executemany(statement, rows)

    def begin(self, *, writes: bool) -> None:
        # A transaction that reads first and then writes would fail, not wait, when another has written between.
        self._driver.execute("BEGIN IMMEDIATE" if writes else "BEGIN")

    def commit(self) -> None:
        self._driver.execute("COMMIT")

    def rollback(self) -> None:
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")

    def close(self) -> None:
        self._driver.close()

    def _use_wal(self) -> None:
        # The switch, made once in a file's life, does not wait for others as other statements do.
        deadline_s = time.monotonic() + database.LOCKED_S
        while True:
            try:
                self._driver.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.02)
