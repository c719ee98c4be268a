"""Leases on work, by objects alone: a lease is a numbered object that is put only if absent.

    lease-0001.json  worker a, a term of 60 s, the last beat at 10:00:35        (a died)
    lease-0002.json  worker b, a term of 60 s, the last beat at 10:02:10, released

The newest lease counts. It ends when it is released, or when its holder sent no heartbeat for a whole term. Then
any worker may put the next number, and `put_if_absent` decides between competitors.

Clocks are never compared. Every heartbeat changes the lease's text. A worker that wants the lease watches the text
and takes over once it was unchanged for a term of the watcher's *own* monotonic clock. Detecting a dead holder
takes a term, but a wrong clock never makes a live holder look dead.

A slow holder finds that its number is no longer the newest. Between that check and its next write another worker
may still take over, so leases only avoid duplicate work; work that must not happen twice needs `put_if_absent`. A
log that only the holder may append to is *fenced* by the lease number: its entries are put if absent at
consecutive numbers with the writer's lease, and a successor appends one before it does anything else. A writer
that lost its lease loses the number, reads on, finds an entry of a greater lease, and appends nothing
(`tests/simulation/test_leases.py`).

The heartbeats are also used for accounting: the time from acquisition to the last heartbeat of every lease.
"""

import json
import math
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.errors import StoreAwayError, StoreError
from assay.store.objects import ObjectStore

TERM_S = 60.0
BEAT_S = 5.0
LOOK_S = 1.0
"""Poll interval while waiting for a lease."""


class LeaseState(NamedTuple):
    """One lease as it stands in the store. Times are seconds since the epoch, of the holder's clock: for people
    and for the account, never compared with another's."""

    worker: str
    acquired_s: float
    beat_s: float
    is_released: bool
    term_s: float = TERM_S
    """The holder counts as dead after this silence."""
    nonce: str = ""
    """Lets a holder recognize its own lease if the response to its put was lost."""
    note: str = ""
    """What the holder leaves to its successor, as of the last heartbeat."""

    @property
    def held_s(self) -> float:
        """Duration up to the last heartbeat."""
        return max(0.0, self.beat_s - self.acquired_s)


class Lease:
    """A lease that this process holds; it sends heartbeats within `holding`."""

    def __init__(self, store: ObjectStore, folder: str, number: int, state: LeaseState, clock: Clock) -> None:
        self.number = number
        """Increases with every holder."""
        self.note: Callable[[], str] = str
        """Called at each heartbeat; returns `LeaseState.note`."""
        self.term_s = state.term_s
        self._store = store
        self._folder = folder
        self._state = state
        self._clock = clock
        self._lock = threading.Lock()

    def is_newest(self) -> bool:
        """Return whether no successor acquired the folder."""
        return not self._store.exists(_key(self._folder, self.number + 1))

    def beat(self, *, release: bool = False) -> None:
        """Write a heartbeat. The text changes even if the clock stands still or goes back."""
        with self._lock:
            beat_s = max(self._clock.now_s(), math.nextafter(self._state.beat_s, math.inf))
            self._state = self._state._replace(beat_s=beat_s, is_released=release, note=self.note())
            self._store.put(_key(self._folder, self.number), _text(self._state))


class _Seen(NamedTuple):
    """Last observation of a lease."""

    number: int
    text: bytes
    looked_s: float
    """Time of the last look, on the watcher's monotonic clock."""
    silent_s: float
    """Confirmed time without a change."""
    is_alive: bool
    """It changed recently while it was watched."""


class LeaseWatch:
    """Acquires leases on a store's folders; tracks how long other holders' leases have not changed."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def take(self, folder: str, *, worker: str, term_s: float = TERM_S) -> Lease | None:
        """Try to acquire the lease on a folder; None if another holder has it or may be alive. Call again to wait."""
        newest = self._newest(folder)
        if newest and not self._is_over(folder, newest):
            return None
        now_s = self._clock.now_s()
        state = LeaseState(worker, now_s, now_s, False, term_s, secrets.token_hex(8))
        key, text = _key(folder, newest + 1), _text(state)
        if not self._store.put_if_absent(key, text) and self._store.get(key) != text:
            return None
        self._seen.pop(folder, None)
        return Lease(self._store, folder, newest + 1, state, self._clock)

    def may_be_dead(self, folder: str) -> bool:
        """Return whether a holder was seen that has not sent a heartbeat since."""
        return folder in self._seen and not self._seen[folder].is_alive

    def _newest(self, folder: str) -> int:
        """Return the number of the newest lease; 0 without one."""
        seen = self._seen.get(folder)
        if seen is not None and not self._store.exists(_key(folder, seen.number + 1)):
            return seen.number
        return max(_numbers(self._store, folder), default=0)

    def _is_over(self, folder: str, number: int) -> bool:
        """Whether a lease was released, or has not changed for a term.

        What lies between two looks counts as silence up to a third of the term: where the whole machine stood
        still, its holders have time to beat before anybody takes over.
        """
        began_s = self._clock.monotonic_s()
        text = self._store.get(_key(folder, number))
        state = _parse(text)
        if state.is_released or not state.worker:
            return True
        seen, looked_s = self._seen.get(folder), self._clock.monotonic_s()
        if seen is None or (seen.number, seen.text) != (number, text):
            self._seen[folder] = _Seen(number, text, looked_s, 0.0, is_alive=seen is not None)
            return False
        silent_s = seen.silent_s + min(max(0.0, began_s - seen.looked_s), state.term_s / 3)
        is_alive = seen.is_alive and silent_s < state.term_s / 3
        self._seen[folder] = _Seen(number, text, looked_s, silent_s, is_alive)
        return silent_s >= state.term_s


def take_lease(store: ObjectStore, folder: str, *, worker: str, clock: Clock, term_s: float = TERM_S) -> Lease | None:
    """Acquire the lease on a folder; None if a live holder has it. Waits for a heartbeat of the holder, at most
    one term."""
    watch = LeaseWatch(store, clock)
    while True:
        lease = watch.take(folder, worker=worker, term_s=term_s)
        if lease is not None or not watch.may_be_dead(folder):
            return lease
        clock.sleep_s(LOOK_S)


@contextmanager
def holding(lease: Lease, *, beat_s: float = BEAT_S) -> Iterator[Lease]:
    """Send heartbeats in the background, at least four in a term; release the lease at the end."""
    is_over = threading.Event()

    def keep_beating() -> None:
        while not is_over.wait(min(beat_s, lease.term_s / 4)):
            try:
                lease.beat()
            except StoreError:  # a store that is away for a moment costs a beat, not the work
                continue

    thread = threading.Thread(target=keep_beating, name="lease", daemon=True)
    thread.start()
    is_heard = True
    try:
        yield lease
    except StoreAwayError:
        is_heard = False  # nor would a release be: the lease runs out
        raise
    finally:
        is_over.set()
        if is_heard:
            thread.join()
            lease.beat(release=True)


def leases(store: ObjectStore, folder: str) -> list[LeaseState]:
    """Return all leases ever acquired on a folder, oldest first."""
    return [_parse(store.get(_key(folder, number))) for number in _numbers(store, folder)]


def last_lease(store: ObjectStore, folder: str, *, before: float = math.inf) -> LeaseState | None:
    """Return the newest lease on a folder, of those with a number below `before`; None if there is none."""
    numbers = [number for number in _numbers(store, folder) if number < before]
    return _parse(store.get(_key(folder, numbers[-1]))) if numbers else None


def _key(folder: str, number: int) -> str:
    return f"{folder}/lease-{number:04d}.json"


def _numbers(store: ObjectStore, folder: str) -> list[int]:
    """Return the lease numbers of a folder in numeric order (by name, 10,000 would sort before 9,999)."""
    names = (item.key.rpartition("/")[2] for item in store.list(f"{folder}/lease-"))
    return sorted(int(named[1]) for name in names if (named := re.fullmatch(r"lease-(\d{4,})\.json", name)))


def _text(state: LeaseState) -> bytes:
    return json.dumps(state._asdict()).encode()


def _parse(text: bytes) -> LeaseState:
    """What a newer assay says beside is passed over."""
    try:
        tree = json.loads(text)
        return LeaseState(**{name: value for name, value in tree.items() if name in LeaseState._fields})
    except (ValueError, TypeError, AttributeError):
        # Cut short with its holder: nobody beats it any more.
        return LeaseState("", 0.0, 0.0, False)
