"""All things of one kind, each with a log of its own: found by id, and listed by age.

    KIND/ID/log/00000000.json ...           what happened to it
    index/KIND/PROJECT/.../TURNED DIGITS    that there may be such a thing: put before its first entry
    open/KIND/ID                            that somebody may have to do something about it: likewise; gone when
                                            done

Both marks are put before the thing is there, so what is there is found; a mark without a thing is passed over.
That is all the index there is: names, in the order in which a store lists them. A page costs the names and the
logs of its own things, whatever else there is; from the oldest on, some lists of names more.

A state that was read stays in memory, and costs one look at whether its log's next entry is there.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from assay.serving.ids import (
    MOMENTS,
    IdKind,
    before_moment,
    index_folder,
    index_key,
    is_id,
    moment_of,
    named_by,
)
from assay.store.logs.entry import EntryT, LogRecord
from assay.store.logs.entry_log import EntryLog, LogKind
from assay.store.objects import ObjectStore

StateT = TypeVar("StateT")
MAX_LOGS, MAX_BYTES = 4096, 4 << 20
"""Logs whose states stay in memory, and the bytes of their entries, which take ten times that as objects."""
WEIGHED_EVERY = 64
NAMES_AT_ONCE = 128
NOBODYS = "-"
"""The owner of what is in no project."""


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
        """The one that was asked for last is the last."""
        self._num_asked = 0
        self._lock = threading.Lock()

    def log(self, an_id: str) -> EntryLog[EntryT, StateT]:
        """The log of an id that was recognised (`is_id`)."""
        assert is_id(self.id_kind, an_id), an_id
        with self._lock:
            log = self._logs.pop(an_id, None)
            if log is None:
                log = EntryLog(self.store, self._folder(an_id), self._log_kind)
            self._logs[an_id] = log
            self._num_asked += 1
            if self._num_asked % WEIGHED_EVERY == 0:
                self._forget_the_oldest()
            return log

    def _forget_the_oldest(self) -> None:
        num_bytes = sum(log.num_bytes for log in self._logs.values())
        for an_id, log in [*self._logs.items()][:-1]:
            if num_bytes <= MAX_BYTES and len(self._logs) <= MAX_LOGS:
                break
            num_bytes -= log.num_bytes
            del self._logs[an_id]

    def state(self, an_id: str) -> StateT | None:
        """What has become of it; None where there is no such thing."""
        return self.log(an_id).state() if is_id(self.id_kind, an_id) else None

    def state_once(self, an_id: str) -> StateT | None:
        """Likewise, of one about which nobody is likely to ask again: it does not stay in memory."""
        log = EntryLog(self.store, self._folder(an_id), self._log_kind)
        return log.state() if is_id(self.id_kind, an_id) else None

    def begin(self, an_id: str, entry: EntryT, *besides: str) -> StateT:
        """Put the first entry; where there is one already, nothing happens. It is listed with its project's,
        and with those of others besides."""
        for owner in (_owner(entry), *besides):
            self.store.put(index_key(owner, an_id), b"")
        if self._is_worked_at:
            self.open(an_id)
        state = self.log(an_id).append(lambda there: entry if there is None else None)
        assert state is not None
        return state

    def open(self, an_id: str) -> None:
        """Somebody may have to do something about it."""
        self.store.put(self._open_key(an_id), b"")

    def close(self, an_id: str) -> None:
        """It is over: nobody has to do anything about it any more."""
        self.log(an_id).write_brief()
        self.store.delete(self._open_key(an_id))

    def is_open(self, an_id: str) -> bool:
        """Whether somebody may have to do something about it."""
        return self.store.exists(self._open_key(an_id))

    def unlist(self, an_id: str, *owners: str) -> None:
        """It is in no list of theirs any more."""
        for owner in owners:
            self.store.delete(index_key(owner, an_id))

    def relist(
        self, owners: Callable[[StateT], Sequence[str]], rest: Callable[[], None], *, num_owners: int = 1
    ) -> None:
        """Name in the index what has a log and is not named there, as where names were lost. `owners`: those in
        whose lists something is, `num_owners` of them, or none. `rest` is called after every few."""
        named = Counter(self._recognised(item.key for item in self.store.list(f"index/{self.id_kind}/")))
        logged = dict.fromkeys(item.key.split("/")[1] for item in self.store.list(f"{self.id_kind}/"))
        for number, an_id in enumerate(logged):
            if number % NAMES_AT_ONCE == 0:
                rest()
            if named[an_id] < num_owners and (state := self.state_once(an_id)) is not None:
                for owner in owners(state):
                    self.store.put(index_key(owner, an_id), b"")

    def is_empty(self) -> bool:
        """Whether no id was ever named."""
        return not [*self.store.list(f"index/{self.id_kind}/", limit=1)]

    def ids(self) -> list[str]:
        """All ids, the oldest first: each of their names is read."""
        return sorted(set(self._recognised(item.key for item in self.store.list(f"index/{self.id_kind}/"))))

    def newest(self, owner: str, behind: str | None = None) -> Iterator[str]:
        """The ids of an owner's things, the newest first, or those older than one; names are read as they are
        asked for."""
        key = "" if behind is None else index_key(owner, behind)
        while True:
            listed = self.store.list(index_folder(self.id_kind, owner), key, NAMES_AT_ONCE)
            found = [item.key for item in listed]
            yield from self._recognised(found)
            if len(found) < NAMES_AT_ONCE:
                return
            key = found[-1]

    def oldest(self, owner: str, behind: str | None = None) -> Iterator[str]:
        """Likewise, the oldest first, or those newer than one."""
        names = NamesBackwards(self.store, self.id_kind, owner)
        return self._recognised(names.before(None if behind is None else index_key(owner, behind)))

    def open_ids(self) -> list[str]:
        """Those about which somebody may have to do something, the oldest first."""
        found = (item.key.rpartition("/")[2] for item in self.store.list(f"open/{self.id_kind}/"))
        return sorted(an_id for an_id in found if is_id(self.id_kind, an_id))

    def states(self, ids: Iterable[str]) -> Iterator[tuple[str, StateT]]:
        """What has become of each of them that is there."""
        for an_id in ids:
            if (state := self.state(an_id)) is not None:
                yield an_id, state

    def _recognised(self, keys: Iterable[str]) -> Iterator[str]:
        found = (named_by(self.id_kind, key) for key in keys)
        return (an_id for an_id in found if is_id(self.id_kind, an_id))

    def _folder(self, an_id: str) -> str:
        return f"{self.id_kind}/{an_id}/log"

    def _open_key(self, an_id: str) -> str:
        return f"open/{self.id_kind}/{an_id}"


class NamesBackwards:
    """An owner's names in the index from the last one on, though a store lists them from the first one on.

    A stretch of moments before the last known name is widened until some names are in it, and narrowed where
    they are too many for one list. So what that costs grows with the logarithm of time, not with the names.
    """

    def __init__(self, store: ObjectStore, id_kind: IdKind, owner: str) -> None:
        self._store = store
        self._id_kind = id_kind
        self._owner = owner
        self._num_moments = 1
        """How wide the last stretch was."""

    def before(self, end: str | None) -> Iterator[str]:
        """Those before a name, or all."""
        while names := self._last_before(end):
            yield from reversed(names)
            end = names[0]

    def _last_before(self, end: str | None) -> list[str]:
        """Some of them, in the store's order; none where there are no more."""
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
        """From `start` on they are too many, and from `none_from` on there are none."""
        while none_from - start > 1:
            middle = (start + none_from) // 2
            found = self._some_from(middle, end)
            if 0 < len(found) <= NAMES_AT_ONCE:
                self._num_moments = none_from - middle
                return found
            start, none_from = (middle, none_from) if found else (start, middle)
        return self._from(start, end, limit=None)  # of one millisecond

    def _some_from(self, start: int, end: str | None) -> list[str]:
        return self._from(start, end, limit=NAMES_AT_ONCE + 1)

    def _from(self, start: int, end: str | None, *, limit: int | None) -> list[str]:
        after = before_moment(self._id_kind, self._owner, start)
        listed = self._store.list(index_folder(self._id_kind, self._owner), after, limit)
        return sorted(item.key for item in listed if end is None or item.key < end)


def _owner(entry: LogRecord) -> str:
    return str(getattr(entry, "project", NOBODYS))
