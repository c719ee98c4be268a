"""A log, as whoever works at its thing under a lease appends to it: nothing, once a later lease stands there.

The newest `taken` entry says whose lease counts, so a worker that was only slow adds nothing later.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from assay.base.errors import FencedError
from assay.store.logs.entry import EntryT
from assay.store.logs.entry_log import EntryLog


class WorkedAt(Protocol):
    """State of something that workers acquire."""

    @property
    def lease(self) -> int:
        """The number of the newest lease."""
        ...


WorkedAtT = TypeVar("WorkedAtT", bound=WorkedAt)


class FencedLog(Generic[EntryT, WorkedAtT]):
    """Appends to a log under a lease."""

    def __init__(self, log: EntryLog[EntryT, WorkedAtT], lease: int, *, of: str) -> None:
        """`lease`: its number. `of`: whose log it is, for messages."""
        self._log = log
        self._lease = lease
        self._of = of

    def acquire(self, acquired: EntryT) -> bool:
        """Append the entry that acquires the log; return False if a later lease already has it."""
        state = self._log.append(lambda now: acquired if now is not None and now.lease < self._lease else None)
        return state is not None and state.lease == self._lease

    def append(self, decide: Callable[[WorkedAtT], EntryT | None]) -> WorkedAtT:
        """See `EntryLog.append`. Raises `FencedError`, without writing, if a later lease acquired the log."""

        def decided(now: WorkedAtT | None) -> EntryT | None:
            assert now is not None, f"{self._of} was taken"
            if now.lease != self._lease:
                raise FencedError(f"{self._of} was taken over by another worker.")
            return decide(now)

        state = self._log.append(decided)
        assert state is not None
        return state
