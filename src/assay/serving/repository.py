"""Resources of one kind, each with its own log: lookup by id, lists by age.

    KIND/ID/log/00000000.json ...             the log
    index/KIND/PROJECT/.../INVERTED DIGITS    index marker, written before the first log entry
    open/KIND/ID                              work marker, also written before; deleted when the work is done

Because markers come first, every resource is listed; a marker without a log is skipped. The index is only names, in
the store's list order. A page reads the names and logs of its own resources; listing from the oldest costs a few
extra list calls.

States are cached. A cached read costs one check for a newer log entry.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from assay.base.clock import Clock
from assay.records.log_entry import Claimed
from assay.serving.api_error import not_found
from assay.serving.ids import MOMENTS, IdKind, before_moment, id_of_index_key, index_folder, index_key, is_id, moment_of
from assay.store.logs.entry import EntryT
from assay.store.logs.entry_log import EntryLog, LogKind
from assay.store.objects import ObjectStore

CreatedT = TypeVar("CreatedT")
MAX_LOGS, MAX_BYTES = 4096, 4 << 20
"""Cached logs, and bytes of their entries; the objects take about ten times as much memory."""
EVICTION_CHECK_INTERVAL = 64
NAMES_AT_ONCE = 128
NOBODYS = "-"
"""Owner of resources without a project."""


@dataclass(frozen=True)
class ResourceState(Generic[CreatedT]):
    """State of a resource, folded from its log."""

    created: CreatedT
    claim: int = 0
    """Highest retry count of its create request that was answered with this resource."""
    is_deleted: bool = False

    @classmethod
    def created_by(cls, created: CreatedT) -> Self:
        """Return the state after the first log entry."""
        return cls(created)

    def after(self, entry: Any) -> Self:
        """Return the state after a later log entry."""
        if isinstance(entry, Claimed):
            return replace(self, claim=max(self.claim, entry.retry_count))
        return replace(self, **self.changes(entry))

    def changes(self, entry: Any) -> Mapping[str, Any]:
        """Return the fields that an entry other than `Claimed` changes."""
        raise NotImplementedError


StateT = TypeVar("StateT", bound=ResourceState[Any])


def resource_log(
    name: str,
    classes: Mapping[str, type[EntryT]],
    state_class: type[StateT],
    light: Callable[[EntryT], EntryT] | None = None,
) -> LogKind[EntryT, StateT]:
    """Return the kind of log that folds to `state_class`. `name`: for messages. `classes`: by entry type."""

    def fold(state: StateT | None, entry: EntryT) -> StateT:
        if state is None:
            return state_class.created_by(entry)
        assert entry.type != "created", f"a {name} begins once"
        return state.after(entry)

    return LogKind(name, classes, fold, light)


class ResourceRepository(Generic[EntryT, StateT]):
    """All resources of one kind. A subclass defines the kind."""

    id_kind: IdKind
    log_kind: LogKind[EntryT, StateT]
    title: str
    """The kind in messages."""
    id_field: str
    """Field of the first log entry that holds the id."""
    param: str
    """The request parameter that names a resource."""
    tracks_open = False
    """Whether new resources get a work marker."""
    num_owners = 1

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        self._logs: dict[str, EntryLog[EntryT, StateT]] = {}
        """Least recently used first."""
        self._num_lookups = 0
        self._lock = threading.Lock()

    def put(self, created: EntryT) -> StateT:
        """Create a resource; idempotent for the same id."""
        resource_id: str = getattr(created, self.id_field)
        for owner in self.owners(created):
            self.store.put(index_key(owner, resource_id), b"")
        if self.tracks_open:
            self.open(resource_id)
        state = self.log(resource_id).append(lambda now: created if now is None else None)
        assert state is not None
        return state

    def owners(self, created: Any) -> tuple[str, ...]:
        """Return the owners in whose lists a resource is. `created`: its first log entry."""
        return (str(getattr(created, "project", NOBODYS)),)

    def find(self, resource_id: str, project: str) -> StateT | None:
        """Return the resource if it belongs to `project` and is not deleted."""
        state = self.state(resource_id)
        return state if state is not None and self._is_found(state, project) else None

    def found(self, resource_id: str, project: str) -> StateT:
        """Likewise; raise `ApiError` if there is none."""
        state = self.find(resource_id, project)
        if state is None:
            raise not_found(self.title, resource_id, param=self.param)
        return state

    def _is_found(self, state: StateT, project: str) -> bool:
        return state.created.project == project and not state.is_deleted

    def change(self, resource_id: str, decide: Callable[[StateT], EntryT | None]) -> StateT:
        """Append what `decide` returns for the state of an existing resource."""
        state = self.log(resource_id).append(lambda now: None if now is None else decide(now))
        assert state is not None, f"{resource_id} was found before"
        return state

    def log(self, resource_id: str) -> EntryLog[EntryT, StateT]:
        """Return the log of a valid id."""
        assert is_id(self.id_kind, resource_id), resource_id
        with self._lock:
            log = self._logs.pop(resource_id, None)
            if log is None:
                log = EntryLog(self.store, self._folder(resource_id), self.log_kind)
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
        log = EntryLog(self.store, self._folder(resource_id), self.log_kind)
        return log.state() if is_id(self.id_kind, resource_id) else None

    def open(self, resource_id: str) -> None:
        """Write the work marker."""
        self.store.put(self._open_key(resource_id), b"")

    def close(self, resource_id: str) -> None:
        """Delete the work marker; the resource needs no more work."""
        self.log(resource_id).write_brief()
        self.store.delete(self._open_key(resource_id))

    def is_open(self, resource_id: str) -> bool:
        return self.store.exists(self._open_key(resource_id))

    def unlist(self, state: StateT) -> None:
        """Remove a resource from all lists."""
        for owner in self.owners(state.created):
            self.store.delete(index_key(owner, getattr(state.created, self.id_field)))

    def restore_index(self, yield_cpu: Callable[[], None]) -> None:
        """Restore missing index markers from the logs. `yield_cpu` is called regularly."""
        named = Counter(self._recognised(item.key for item in self.store.list(f"index/{self.id_kind}/")))
        logged = dict.fromkeys(item.key.split("/")[1] for item in self.store.list(f"{self.id_kind}/"))
        for number, resource_id in enumerate(logged):
            if number % NAMES_AT_ONCE == 0:
                yield_cpu()
            if named[resource_id] < self.num_owners and (state := self.state_once(resource_id)) is not None:
                for owner in () if state.is_deleted else self.owners(state.created):
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

    A time window before the last known name is widened until it holds some names, and halved while it holds too many
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
        """Search within [start, none_from): there are too many keys from `start` on, and none from `none_from` on."""
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
