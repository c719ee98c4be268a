"""A log as the holder of a lease appends to it: nothing is appended once a later lease stands in the log.

The newest `taken` entry says whose lease counts, so a worker that was only slow adds nothing later.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from assay.base.clock import Clock
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

    def __init__(
        self,
        log: EntryLog[EntryT, WorkedAtT],
        lease: int,
        clock: Clock,
        *,
        of: str,
        is_over: Callable[[WorkedAtT], bool] = lambda now: False,
    ) -> None:
        """`lease`: its number. `of`: whose log it is, for messages. `is_over`: state -> whether nothing may follow."""
        self.lease = lease
        self._log = log
        self._clock = clock
        self._of = of
        self._is_over = is_over

    def entry(self, entry_class: Callable[..., EntryT], **fields: Any) -> EntryT:
        """Return an entry of now, under this lease."""
        return entry_class(at_s=self._clock.now_s(), lease=self.lease, **fields)

    def acquire(self, acquired: EntryT) -> bool:
        """Append the entry that acquires the log; return False if a later lease already has it."""
        state = self._log.append(lambda now: acquired if now is not None and now.lease < self.lease else None)
        return state is not None and state.lease == self.lease

    def append(self, entry: EntryT, when: Callable[[WorkedAtT], bool] = lambda now: True) -> WorkedAtT:
        """Append an entry if the state fits; return the state. Raises `FencedError`, without writing, if a later lease
        acquired the log."""

        def decided(now: WorkedAtT | None) -> EntryT | None:
            assert now is not None, f"{self._of} was taken"
            if now.lease != self.lease:
                raise FencedError(f"{self._of} was taken over by another worker.")
            return entry if when(now) and not self._is_over(now) else None

        state = self._log.append(decided)
        assert state is not None
        return state
