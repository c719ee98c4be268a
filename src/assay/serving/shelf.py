"""All things of one kind, each with a log of its own: found by id, and listed by age.

    KIND/ID/log/00000000.json ...    what happened to it
    index/KIND/DAY/ID                that there may be such a thing: put before its first entry
    open/KIND/ID                     that somebody may have to do something about it: likewise; gone when done

Both marks are put before the thing is there, so what is there is found; a mark without a thing is passed
over. That is all the index there is: names, in an order that a store lists quickly.
"""

import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

from assay.serving.ids import IdKind, index_key, is_id
from assay.store.logs.entry import EntryT
from assay.store.logs.entry_log import EntryLog, LogKind
from assay.store.objects import ObjectStore

StateT = TypeVar("StateT")
MAX_LOGS = 10_000
"""States that stay in memory."""


class Shelf(Generic[EntryT, StateT]):
    """The logs of one kind."""

    def __init__(
        self, store: ObjectStore, id_kind: IdKind, log_kind: LogKind[EntryT, StateT], *, is_worked_at: bool
    ) -> None:
        """`is_worked_at`: whether they are marked as open."""
        self.store = store
        self.id_kind = id_kind
        self._log_kind = log_kind
        self._is_worked_at = is_worked_at
        self._logs: dict[str, EntryLog[EntryT, StateT]] = {}
        self._lock = threading.Lock()

    def log(self, an_id: str) -> EntryLog[EntryT, StateT]:
        """The log of an id that was recognised (`is_id`)."""
        assert is_id(self.id_kind, an_id), an_id
        with self._lock:
            if len(self._logs) >= MAX_LOGS:
                self._logs.pop(next(iter(self._logs)))
            if an_id not in self._logs:
                self._logs[an_id] = EntryLog(self.store, f"{self.id_kind}/{an_id}/log", self._log_kind)
            return self._logs[an_id]

    def state(self, an_id: str) -> StateT | None:
        """What has become of it; None where there is no such thing."""
        return self.log(an_id).state() if is_id(self.id_kind, an_id) else None

    def begin(self, an_id: str, entry: EntryT) -> StateT:
        """Put the first entry; where there is one already, nothing happens."""
        self.store.put(index_key(an_id), b"")
        if self._is_worked_at:
            self.store.put(self._open_key(an_id), b"")
        state = self.log(an_id).append(lambda there: entry if there is None else None)
        assert state is not None
        return state

    def close(self, an_id: str) -> None:
        """Nobody has to do anything about it any more."""
        self.store.delete(self._open_key(an_id))

    def ids(self) -> list[str]:
        """All ids, the oldest first."""
        return self._named(f"index/{self.id_kind}/")

    def open_ids(self) -> list[str]:
        """Those about which somebody may have to do something, likewise."""
        return self._named(f"open/{self.id_kind}/")

    def states(self, ids: list[str]) -> Iterator[tuple[str, StateT]]:
        """What has become of each of them that is there."""
        for an_id in ids:
            if (state := self.state(an_id)) is not None:
                yield an_id, state

    def _named(self, prefix: str) -> list[str]:
        found = (item.key.rpartition("/")[2] for item in self.store.list(prefix))
        return sorted(an_id for an_id in found if is_id(self.id_kind, an_id))

    def _open_key(self, an_id: str) -> str:
        return f"open/{self.id_kind}/{an_id}"
