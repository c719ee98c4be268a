"""Jobs that are over, as the API shows them, in a table: each costs a look, and not a log.

    over, and not in the table --its log--> its shape --put--> every later answer takes it from there

Once its worker has closed a job, nothing changes what is shown of it: so no row is ever out of date. Another
assay may show it otherwise, and has rows of its own. The table is a copy and no more: where it is missing,
damaged or cannot be written, the logs are read; whoever deletes the file loses some seconds. Whoever puts older
logs in the place of the store's has to delete it.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from assay.base.code_version import code_version
from assay.serving.ids import is_id
from assay.serving.jobs import JobShelf
from assay.serving.openai.shapes import job_shape

LOCKED_S = 0.5
"""How long somebody else's lock is waited for; then the log is read."""
AWAY_S = 5.0
"""How long a table that could not be asked is not asked again: a page would wait for each of its jobs."""
FILLED_AT_ONCE = 50
KNOWN_IN_A_ROW = 1000
"""Rows behind which a later pass expects nothing new."""
_TABLES = (
    "CREATE TABLE IF NOT EXISTS jobs (version TEXT, job_id TEXT, shape BLOB, PRIMARY KEY (version, job_id))",
    "CREATE TABLE IF NOT EXISTS filled (version TEXT, project TEXT, PRIMARY KEY (version, project))",
)


class JobTable:
    """The shapes of a store's jobs that are over; safe to share between threads."""

    def __init__(self, jobs: JobShelf, file: Path | None = None) -> None:
        """`file`: of SQLite; in memory where none is given."""
        self._jobs = jobs
        self._file = file
        self._version = code_version()
        self._lock = threading.Lock()
        self._driver: sqlite3.Connection | None = None
        self._away_until_s = 0.0

    def shape(self, job_id: str) -> dict[str, Any] | None:
        """`FineTuningJob` of a job that is over; None of any other."""
        if not is_id("ftjob", job_id):
            return None
        if (row := self._row(job_id)) is not None:
            shown: dict[str, Any] = from_json(row)
            return shown
        shelf = self._jobs.shelf
        # In this order: a state that is read behind the look is the last one.
        state = None if shelf.is_open(job_id) else shelf.state_once(job_id)
        if state is None or not state.is_settled:
            return None
        shown = job_shape(state, None)
        self._execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", self._version, job_id, to_json(shown))
        return shown

    def fill(self, projects: Iterable[str], rest: Callable[[], None]) -> None:
        """Take in the projects' jobs that are over, the newest first; `rest` is called after every few.

        Once all of a project's were looked at, it ends where so many in a row were there already. It gives up
        while the table cannot be asked: what is read then would be read for nothing.
        """
        for project in projects:
            asked = "SELECT 1 FROM filled WHERE version = ? AND project = ?"
            is_filled = bool(self._execute(asked, self._version, project))
            num_known = 0
            for number, job_id in enumerate(self._jobs.shelf.newest(project), 1):
                num_known = num_known + 1 if self._row(job_id) is not None else 0
                if self._is_away():
                    return
                if is_filled and num_known == KNOWN_IN_A_ROW:
                    break
                if num_known == 0:
                    self.shape(job_id)
                if number % FILLED_AT_ONCE == 0:
                    rest()
            self._execute("INSERT OR REPLACE INTO filled VALUES (?, ?)", self._version, project)

    def _is_away(self) -> bool:
        return time.monotonic() < self._away_until_s

    def _row(self, job_id: str) -> bytes | None:
        rows = self._execute("SELECT shape FROM jobs WHERE version = ? AND job_id = ?", self._version, job_id)
        return rows[0][0] if rows else None

    def _execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What it answers; nothing where the table cannot be asked."""
        with self._lock:
            if self._is_away():
                return []
            try:
                self._driver = self._driver or self._connected()
                return self._driver.execute(statement, values).fetchall()
            except sqlite3.OperationalError:  # locked, the disk is full, or nobody may write there
                self._away_until_s = time.monotonic() + AWAY_S
                return []
            except sqlite3.DatabaseError:  # damaged
                self._begin_anew()
                return []

    def _connected(self) -> sqlite3.Connection:
        driver = sqlite3.connect(
            self._file or ":memory:", timeout=LOCKED_S, isolation_level=None, check_same_thread=False
        )
        driver.execute("PRAGMA journal_mode = WAL")
        driver.execute("PRAGMA synchronous = NORMAL")
        for table in _TABLES:
            driver.execute(table)
        for name in ("jobs", "filled"):
            driver.execute(f"DELETE FROM {name} WHERE version != ?", (self._version,))
        return driver

    def _begin_anew(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None
        if self._file is not None:
            for suffix in ("", "-wal", "-shm"):
                self._file.with_name(self._file.name + suffix).unlink(missing_ok=True)
