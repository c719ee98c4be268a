"""Writes to the ledger in the background, so that a hanging database blocks no one: a queue and a thread.

    training --put--> queue --> thread --> ledger
                                  | it fails, or is not done when its owner leaves
                                  v
                       ledger.missed/SUBJECT in the home, until it is written all the same

Facts are written to a folder before the ledger, so missed writes need not be stored here: once the ledger responds,
`again` rewrites everything about the subject. The thread does so while its owner lives; afterwards the next
command that opens the ledger does (`workflows.rebuild.fold_in_missed`).
"""

import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self, TypeVar

from assay.base.errors import AssayError, StoreError
from assay.store.home import Home
from assay.store.ledger.database import shown_url
from assay.store.ledger.ledger import Ledger

Facts = Callable[[Ledger], object]
ResultT = TypeVar("ResultT")

LEAVE_S = 2.0
"""Limit on waiting for pending writes at exit: SIGTERM to exit takes a commit and at most 5 s."""
FINISH_S = 10.0
"""The same limit after a normal end."""
RETRY_S = 5.0
"""Delay before a retry."""
MISSED = "ledger.missed"


class LedgerWriter:
    """One subject's facts on their way into the ledger; to be closed. Safe to share between threads."""

    def __init__(self, home: Home, subject: str, again: Facts) -> None:
        """`again` writes all that a folder holds about the subject: a run's id, or another name."""
        self._home = home
        self._subject = subject
        self._again = again
        self._jobs: deque[Facts] = deque()
        self._is_away = False
        self._is_closed = False
        self._has_ended = False
        self._last_error = ""
        self._changed = threading.Condition()
        if subject in missed_subjects(home):  # who left before the ledger was back
            self._jobs.append(self._catch_up)
        # A daemon: a call into a database that hangs does not keep the process.
        self._thread = threading.Thread(target=self._write, name="ledger writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_behind(self) -> bool:
        """Whether there is something that is not written yet."""
        return bool(self._jobs) or self._is_away

    def put(self, facts: Facts) -> None:
        """Have facts written that are in their folder already; returns at once."""
        with self._changed:
            self._jobs.append(facts)
            self._changed.notify_all()

    def query(self, read: Callable[[Ledger], ResultT], *, within_s: float = LEAVE_S) -> ResultT | None:
        """Return the result of a query after all pending writes; None on timeout."""
        results: SimpleQueue[ResultT] = SimpleQueue()
        self.put(lambda ledger: results.put(read(ledger)))
        try:
            return results.get(timeout=within_s)
        except Empty:
            return None

    def wait(self, within_s: float) -> bool:
        """Wait until everything is written; return False on timeout."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_behind or self._has_ended, within_s)
            return not self.is_behind

    def close(self) -> None:
        """Write pending facts within `LEAVE_S`; mark the subject as missed if that fails."""
        if self._is_closed:
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self.wait(LEAVE_S):
            self._thread.join(LEAVE_S)  # the last to close a SQLite file folds its write-ahead log into it
        else:
            mark_missed(self._home, self._subject)
            print(
                f"the ledger does not answer; what it missed of '{self._subject}' is in its folder, and the "
                "next command that opens the ledger writes it down.",
                file=sys.stderr,
            )

    def _write(self) -> None:
        ledger = None
        while (jobs := self._next()) is not None:
            num_jobs = len(jobs)
            try:
                ledger = ledger or self._home.open_ledger()
                if self._is_away:
                    self._catch_up(ledger)
                else:
                    num_jobs = 1
                    jobs[0](ledger)
                is_away = False
            except AssayError as error:
                is_away = True
                self._miss(error)
            with self._changed:
                for _ in range(num_jobs):
                    self._jobs.popleft()
                self._is_away = is_away
                self._has_ended = is_away and self._is_closed
                self._changed.notify_all()
            if self._has_ended:
                break
        if ledger is not None:
            ledger.close()

    def _catch_up(self, ledger: Ledger) -> None:
        """Rewrite everything about the subject, because the database may be a new one."""
        self._again(ledger)
        clear_missed(self._home, self._subject)

    def _next(self) -> list[Facts] | None:
        """Wait for facts to write; None after the last ones. While the ledger is unavailable, wait before a retry."""
        with self._changed:
            if self._is_away:
                self._changed.wait_for(lambda: self._is_closed, RETRY_S)
            else:
                self._changed.wait_for(lambda: self._jobs or self._is_closed)
                if not self._jobs:
                    return None
            return list(self._jobs)

    def _miss(self, error: AssayError) -> None:
        if not self._is_away:
            mark_missed(self._home, self._subject)
        if self._last_error != (message := str(error)):
            self._last_error = message
            print(f"the ledger is behind; work goes on without it. {error}", file=sys.stderr)


def mark_missed(home: Home, subject: str) -> None:
    """Mark that this home's ledger lacks facts about a subject."""
    path = _mark(home, subject)
    unfinished = home.folder / f".{MISSED}-{secrets.token_hex(4)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A mark that is made again is there meanwhile: somebody may be looking for it.
        unfinished.write_text(_name(home) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        print(
            f"{path}: {error.strerror}. 'assay runs --rebuild' writes down what the ledger missed.",
            file=sys.stderr,
        )


@contextmanager
def marking(home: Home, *subjects: str) -> Iterator[None]:
    """Mark the subjects as missed if the ledger fails within the block."""
    try:
        yield
    except StoreError:
        for subject in subjects:
            mark_missed(home, subject)
        raise


def missed_subjects(home: Home) -> dict[str, float]:
    """Return the subjects that this home's ledger lacks facts about, with the time of the mark."""
    found = {}
    for path in sorted((home.folder / MISSED).glob("*")):
        try:
            if path.read_text(encoding="utf-8").strip() == _name(home):
                found[path.name] = path.stat().st_mtime
        except OSError:
            continue  # somebody else has just written it down
    return found


def clear_missed(home: Home, subject: str, *, marked_at_s: float | None = None) -> None:
    """Remove a subject's mark, unless it was renewed after `marked_at_s`."""
    path = _mark(home, subject)
    try:
        if marked_at_s is None or path.stat().st_mtime == marked_at_s:
            path.unlink()
    except OSError:
        return


def _mark(home: Home, subject: str) -> Path:
    return home.folder / MISSED / subject


def _name(home: Home) -> str:
    return shown_url(home.ledger)
