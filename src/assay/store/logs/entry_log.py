"""Event-sourced state: a fold over the entries FOLDER/00000000.json, 00000001.json, ...

Each entry is put only if its number is free. So whoever appends decides on the newest state: who loses the
number to another reads that one's entry, and decides again. What is decided never rests on a state that was
not there.

    state --decide--> entry --put if absent--> state of all entries
      ^                           | the number was taken
      +-------- read it ----------+

Entries are immutable, so nobody reads one twice: to be up to date costs one look at whether the next number is
taken. Any number of processes may append; threads of one process share a log.

Of a kind whose entries hold much that a state is not asked for, only `light` ones stay in memory. The light
entries of a log that is over are put once more, as one object, its *brief*: who has read nothing yet reads
that. It is a copy and no more: where it is missing, damaged or of another assay, the entries are read.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic_core import from_json

from assay.base.digest import canonical_json, sha256_of_bytes
from assay.base.errors import DataError
from assay.store.logs.entry import EntryT, LogRecord, changed, entry_text, read_entry
from assay.store.objects import ObjectStore

StateT = TypeVar("StateT")
BRIEF = "brief"
LIGHT_BYTES = 400
"""Approximate size of a light entry."""


class LogKind(NamedTuple, Generic[EntryT, StateT]):
    """Properties of one kind of log."""

    name: str
    """For messages: `a job's log`."""
    classes: Mapping[str, type[Any]]
    """By an entry's `type`."""
    fold: Callable[[StateT | None, EntryT], StateT]
    """Return the state after an entry; the state before the first entry is None."""
    light: Callable[[EntryT], EntryT] | None = None
    """Reduces an entry to what the state needs; None keeps all of it."""


class EntryLog(Generic[EntryT, StateT]):
    """Reads and appends one log."""

    def __init__(self, store: ObjectStore, folder: str, kind: LogKind[EntryT, StateT]) -> None:
        self._store = store
        self._folder = folder
        self._kind = kind
        self._lock = threading.Lock()
        self._state: StateT | None = None
        self._num_entries = 0
        self._sha256 = ""
        self._is_read = False
        self.num_bytes = 0
        """Total size of the entries in the state."""

    def state(self) -> StateT | None:
        """Return the state after all entries; None without entries."""
        with self._lock:
            self._catch_up()
            return self._state

    def append(self, decide: Callable[[StateT | None], EntryT | None]) -> StateT | None:
        """Put what `decide` makes of the newest state, unless it makes nothing; the state after that.

        `decide` is asked again where somebody else appended meanwhile. It may raise: then nothing was put.
        """
        with self._lock:
            self._catch_up()
            while (entry := decide(self._state)) is not None:
                key = self._next_key()
                data, known = entry_text(entry, key, self._sha256)
                if self._store.put_if_absent(key, data):
                    self._accept(entry, known.sha256, len(data))
                    break
                num_known, sha256 = self._num_entries, known.sha256
                self._catch_up(until=num_known + 1)
                if self._sha256 == sha256:
                    break  # our own put, whose answer got lost
                self._catch_up()
            return self._state

    def entry(self, number: int) -> EntryT:
        """Return one existing entry in full."""
        key = self._key(number)
        entry: EntryT = read_entry(self._store.get(key), key, self._kind.classes, of=self._kind.name).entry
        return entry

    def write_brief(self) -> None:
        """Write the brief of a finished log; does nothing if the kind has no light entries."""
        if self._kind.light is None:
            return
        with self._lock:
            self._catch_up()
            entries = [self._kind.light(self.entry(number)) for number in range(self._num_entries)]
            self._store.put(f"{self._folder}/{BRIEF}", brief_text(entries, self._sha256))

    def _catch_up(self, *, until: int | None = None) -> None:
        if not self._is_read:
            if not self._read_brief():
                self._read_all()
            self._is_read = True
        while self._num_entries != until and self._store.exists(key := self._next_key()):
            self._read(key)

    def _read_all(self) -> None:
        """Read all entries with one list request instead of one look-up each."""
        found = sorted(item.key for item in self._store.list(f"{self._folder}/"))
        for key in (key for key in found if re.fullmatch(r"\d{8,}\.json", key.rpartition("/")[2])):
            if key != self._next_key():
                raise DataError(
                    f"{key} is there, and {self._next_key()} is missing: this {self._kind.name} has a hole. "
                    "Somebody deleted from the store; restore the file."
                )
            self._read(key)

    def _read_brief(self) -> bool:
        """Read all entries from the brief; return whether that succeeded."""
        key = f"{self._folder}/{BRIEF}"
        if self._kind.light is None or not self._store.exists(key):
            return False
        sha256, _, text = self._store.get(key).partition(b"\n")
        if sha256_of_bytes(text).encode() != sha256:
            return False
        tree = from_json(text)
        try:
            entries = [self._kind.classes[item["type"]].from_tree(item, source=key) for item in tree["entries"]]
        except (DataError, KeyError):  # of another assay
            return False
        for entry in entries:
            self._accept(entry, tree["entry_sha256"], 0)
        self.num_bytes = len(text)
        return True

    def _read(self, key: str) -> None:
        data = self._store.get(key)
        read = read_entry(data, key, self._kind.classes, of=self._kind.name)
        if read.previous_sha256 != self._sha256:
            raise changed(key, "it does not follow the entry before it, so one of the two was replaced")
        self._accept(read.entry, read.sha256, len(data))

    def _accept(self, entry: EntryT, sha256: str, num_bytes: int) -> None:
        light = entry if self._kind.light is None else self._kind.light(entry)
        self._state = self._kind.fold(self._state, light)
        self._sha256 = sha256
        self._num_entries += 1
        self.num_bytes += num_bytes if light is entry else min(num_bytes, LIGHT_BYTES)

    def _next_key(self) -> str:
        return self._key(self._num_entries)

    def _key(self, number: int) -> str:
        return f"{self._folder}/{number:08d}.json"


def brief_text(entries: Sequence[LogRecord], sha256: str) -> bytes:
    """Return the brief of these light entries; `sha256` is the digest of the last one."""
    trees = [{**entry.to_tree(), "type": entry.type} for entry in entries]
    text = canonical_json({"entries": trees, "entry_sha256": sha256}).encode()
    return sha256_of_bytes(text).encode() + b"\n" + text
