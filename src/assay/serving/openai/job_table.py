"""SQLite cache of ended jobs' API objects, so a list page reads rows instead of replaying event logs.

    ended job, not in the table --its log--> its object --put--> later responses read the table

An ended job's object never changes once its worker has closed it, so rows cannot be stale. Each code version has rows
of its own. The table is only a cache: if it is missing, damaged or locked, logs are read instead. Delete it after
restoring older logs from a backup.
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
from assay.serving.jobs import JobRepository
from assay.serving.openai.objects import job_object

LOCKED_S = 0.5
"""How long to wait for a lock before reading the log instead."""
AWAY_S = 5.0
"""After an error, the table is skipped for this long."""
FILLED_AT_ONCE = 50
KNOWN_IN_A_ROW = 1000
"""`fill` stops after this many consecutive known rows."""
_TABLES = (
    "CREATE TABLE IF NOT EXISTS jobs (version TEXT, job_id TEXT, shape BLOB, PRIMARY KEY (version, job_id))",
    "CREATE TABLE IF NOT EXISTS filled (version TEXT, project TEXT, PRIMARY KEY (version, project))",
)


class JobTable:
    """Cached objects of ended jobs; thread-safe."""

    def __init__(self, jobs: JobRepository, file: Path | None = None) -> None:
        """`file`: SQLite file; in memory without one."""
        self._jobs = jobs
        self._file = file
        self._version = code_version()
        self._lock = threading.Lock()
        self._driver: sqlite3.Connection | None = None
        self._away_until_s = 0.0

    def shape(self, job_id: str) -> dict[str, Any] | None:
        """Return the `FineTuningJob` of an ended job; None for others."""
        if not is_id("ftjob", job_id):
            return None
        if (row := self._row(job_id)) is not None:
            shown: dict[str, Any] = from_json(row)
            return shown
        # Order matters: a state that is read after the job was closed is final.
        state = None if self._jobs.is_open(job_id) else self._jobs.state_once(job_id)
        if state is None or not state.has_final_cost:
            return None
        shown = job_object(state, None)
        self._execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", self._version, job_id, to_json(shown))
        return shown

    def fill(self, projects: Iterable[str], yield_cpu: Callable[[], None]) -> None:
        """Cache ended jobs of the projects, newest first; `yield_cpu` is called regularly.

        After the first complete pass over a project, later passes stop at `KNOWN_IN_A_ROW`. Stops if the table is
        unavailable.
        """
        for project in projects:
            query = "SELECT 1 FROM filled WHERE version = ? AND project = ?"
            is_filled = bool(self._execute(query, self._version, project))
            num_known = 0
            for number, job_id in enumerate(self._jobs.newest(project), 1):
                num_known = num_known + 1 if self._row(job_id) is not None else 0
                if self._is_away():
                    return
                if is_filled and num_known == KNOWN_IN_A_ROW:
                    break
                if num_known == 0:
                    self.shape(job_id)
                if number % FILLED_AT_ONCE == 0:
                    yield_cpu()
            self._execute("INSERT OR REPLACE INTO filled VALUES (?, ?)", self._version, project)

    def _is_away(self) -> bool:
        return time.monotonic() < self._away_until_s

    def _row(self, job_id: str) -> bytes | None:
        rows = self._execute("SELECT shape FROM jobs WHERE version = ? AND job_id = ?", self._version, job_id)
        return rows[0][0] if rows else None

    def _execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows; empty if the table is unavailable."""
        with self._lock:
            if self._is_away():
                return []
            try:
                self._driver = self._driver or self._connected()
                return self._driver.execute(statement, values).fetchall()
            except sqlite3.OperationalError:  # locked, disk full or read-only
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
