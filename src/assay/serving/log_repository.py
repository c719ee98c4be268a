"""Resources of one kind, each with its own log: lookup by id, lists by age.

    KIND/ID/log/00000000.json ...             the log
    index/KIND/PROJECT/.../INVERTED DIGITS    index marker, written before the first log entry
    open/KIND/ID                              work marker, also written before; deleted when the work is done

Because markers come first, every resource is listed; a marker without a log is skipped. The index is only
names, in
the store's list order. A page reads the names and logs of its own resources; listing from the oldest costs a
few
extra list calls.

States are cached. A cached read costs one check for a newer log entry.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from assay.serving.ids import MOMENTS, IdKind, before_moment, id_of_index_key, index_folder, index_key, is_id, moment_of
from assay.store.logs.entry import EntryT, LogRecord
from assay.store.logs.entry_log import EntryLog, LogKind
from assay.store.objects import ObjectStore

StateT = TypeVar("StateT")
MAX_LOGS, MAX_BYTES = 4096, 4 << 20
"""Cached logs, and bytes of their entries; the objects take about ten times as much memory."""
EVICTION_CHECK_INTERVAL = 64
NAMES_AT_ONCE = 128
NOBODYS = "-"
"""Owner of resources without a project."""


class LogRepository(Generic[EntryT, StateT]):
    """The logs of one kind of resource."""

    def __init__(
        self, store: ObjectStore, id_kind: IdKind, log_kind: LogKind[EntryT, StateT], *, tracks_open: bool
    ) -> None:
        """`tracks_open`: whether new resources get a work marker."""
        self.store = store
        self.id_kind = id_kind
        self._log_kind = log_kind
        self._is_worked_at = tracks_open
        self._logs: dict[str, EntryLog[EntryT, StateT]] = {}
        """Least recently used first."""
        self._num_lookups = 0
        self._lock = threading.Lock()

    def log(self, resource_id: str) -> EntryLog[EntryT, StateT]:
        """Return the log of a valid id."""
        assert is_id(self.id_kind, resource_id), resource_id
        with self._lock:
            log = self._logs.pop(resource_id, None)
            if log is None:
                log = EntryLog(self.store, self._folder(resource_id), self._log_kind)
            self._logs[resource_id] = log
            self._num_lookups += 1
            if self._num_lookups % EVICTION_CHECK_INTERVAL == 0:
                self._forget_the_oldest()
            return log

    def _forget_the_oldest(self) -> None:
        num_bytes = sum(log.num_bytes for log in self._logs.values())
        for resource_id, log in [*self._logs.items()][:-1]:
            if num_bytes <= MAX_BYTES and len(self._logs) <= MAX_LOGS:
                break
            num_bytes -= log.num_bytes
            del self._logs[resource_id]

    def state(self, resource_id: str) -> StateT | None:
        """Return the state, or None if there is no such resource."""
        return self.log(resource_id).state() if is_id(self.id_kind, resource_id) else None

    def state_once(self, resource_id: str) -> StateT | None:
        """Return the state without caching it."""
        log = EntryLog(self.store, self._folder(resource_id), self._log_kind)
        return log.state() if is_id(self.id_kind, resource_id) else None

    def begin(self, resource_id: str, entry: EntryT, *besides: str) -> StateT:
        """Write the first log entry; no-op if there is one. List it for its project and for `besides`."""
        for owner in (_owner(entry), *besides):
            self.store.put(index_key(owner, resource_id), b"")
        if self._is_worked_at:
            self.open(resource_id)
        state = self.log(resource_id).append(lambda now: entry if now is None else None)
        assert state is not None
        return state

    def open(self, resource_id: str) -> None:
        """Write the work marker."""
        self.store.put(self._open_key(resource_id), b"")

    def close(self, resource_id: str) -> None:
        """Delete the work marker; the resource needs no more work."""
        self.log(resource_id).write_brief()
        self.store.delete(self._open_key(resource_id))

    def is_open(self, resource_id: str) -> bool:
        return self.store.exists(self._open_key(resource_id))

    def unlist(self, resource_id: str, *owners: str) -> None:
        """Remove a resource from the lists of these owners."""
        for owner in owners:
            self.store.delete(index_key(owner, resource_id))

    def restore_index(
        self, owners: Callable[[StateT], Sequence[str]], yield_cpu: Callable[[], None], *, num_owners: int = 1
    ) -> None:
        """Restore missing index markers from the logs.

        `owners`: the `num_owners` owners in whose lists a resource belongs, or none. `yield_cpu` is called
        regularly.
        """
        named = Counter(self._recognised(item.key for item in self.store.list(f"index/{self.id_kind}/")))
        logged = dict.fromkeys(item.key.split("/")[1] for item in self.store.list(f"{self.id_kind}/"))
        for number, resource_id in enumerate(logged):
            if number % NAMES_AT_ONCE == 0:
                yield_cpu()
            if named[resource_id] < num_owners and (state := self.state_once(resource_id)) is not None:
                for owner in owners(state):
                    self.store.put(index_key(owner, resource_id), b"")

    def is_empty(self) -> bool:
        """Return whether no resource was ever listed."""
        return not [*self.store.list(f"index/{self.id_kind}/", limit=1)]

    def ids(self) -> list[str]:
        """Return all ids, oldest first."""
        return sorted(set(self._recognised(item.key for item in self.store.list(f"index/{self.id_kind}/"))))

    def newest(self, owner: str, after: str | None = None) -> Iterator[str]:
        """Yield an owner's ids from newest to oldest, starting after `after`; names are listed lazily."""
        key = "" if after is None else index_key(owner, after)
        while True:
            listed = self.store.list(index_folder(self.id_kind, owner), key, NAMES_AT_ONCE)
            found = [item.key for item in listed]
            yield from self._recognised(found)
            if len(found) < NAMES_AT_ONCE:
                return
            key = found[-1]

    def oldest(self, owner: str, after: str | None = None) -> Iterator[str]:
        """Yield an owner's ids from oldest to newest, starting after `after`."""
        names = NamesBackwards(self.store, self.id_kind, owner)
        return self._recognised(names.before(None if after is None else index_key(owner, after)))

    def open_ids(self) -> list[str]:
        """Return ids with a work marker, oldest first."""
        found = (item.key.rpartition("/")[2] for item in self.store.list(f"open/{self.id_kind}/"))
        return sorted(resource_id for resource_id in found if is_id(self.id_kind, resource_id))

    def states(self, ids: Iterable[str]) -> Iterator[tuple[str, StateT]]:
        """Yield (id, state) of the ids that exist."""
        for resource_id in ids:
            if (state := self.state(resource_id)) is not None:
                yield resource_id, state

    def _recognised(self, keys: Iterable[str]) -> Iterator[str]:
        found = (id_of_index_key(self.id_kind, key) for key in keys)
        return (resource_id for resource_id in found if is_id(self.id_kind, resource_id))

    def _folder(self, resource_id: str) -> str:
        return f"{self.id_kind}/{resource_id}/log"

    def _open_key(self, resource_id: str) -> str:
        return f"open/{self.id_kind}/{resource_id}"


class NamesBackwards:
    """An owner's index keys from last to first, although stores list from first to last.

    A time window before the last known name is widened until it holds some names, and halved while it holds too
    many
    for one list call. The cost grows with the logarithm of time, not with the number of names.
    """

    def __init__(self, store: ObjectStore, id_kind: IdKind, owner: str) -> None:
        self._store = store
        self._id_kind = id_kind
        self._owner = owner
        self._num_moments = 1
        """Width of the last window."""

    def before(self, end: str | None) -> Iterator[str]:
        """Yield the keys before `end`, or all."""
        while names := self._last_before(end):
            yield from reversed(names)
            end = names[0]

    def _last_before(self, end: str | None) -> list[str]:
        """Return some of the last keys before `end` in list order; empty if there are none."""
        top = MOMENTS if end is None else moment_of(end) + 1
        none_from = top
        while True:
            start = max(0, top - self._num_moments)
            found = self._some_from(start, end)
            if len(found) > NAMES_AT_ONCE:
                return self._narrowed(start, none_from, end)
            if start == 0 or len(found) >= max(1, NAMES_AT_ONCE // 4):
                return found
            none_from = none_from if found else start
            self._num_moments *= 16

    def _narrowed(self, start: int, none_from: int, end: str | None) -> list[str]:
        """Search within [start, none_from): there are too many keys from `start` on, and none from `none_from`
        on."""
        while none_from - start > 1:
            middle = (start + none_from) // 2
            found = self._some_from(middle, end)
            if 0 < len(found) <= NAMES_AT_ONCE:
                self._num_moments = none_from - middle
                return found
            start, none_from = (middle, none_from) if found else (start, middle)
        return self._from(start, end, limit=None)  # all within one millisecond

    def _some_from(self, start: int, end: str | None) -> list[str]:
        return self._from(start, end, limit=NAMES_AT_ONCE + 1)

    def _from(self, start: int, end: str | None, *, limit: int | None) -> list[str]:
        after = before_moment(self._id_kind, self._owner, start)
        listed = self._store.list(index_folder(self._id_kind, self._owner), after, limit)
        return sorted(item.key for item in listed if end is None or item.key < end)


def _owner(entry: LogRecord) -> str:
    return str(getattr(entry, "project", NOBODYS))
