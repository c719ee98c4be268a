"""Who works at what, told by files alone: a lease is a numbered object that is put only if absent.

    lease-0001.json  worker a, taken 10:00:00, last beat 10:00:35        (a died)
    lease-0002.json  worker b, taken 10:01:40, last beat 10:02:10, released

The newest lease counts. It ends when it is released, or when its holder has not beaten for `patience_s`; then
the next number is anybody's, and `put_if_absent` decides between two who want it. A holder that was only slow
finds that its number is no longer the newest. So leases spare double work; what must not be done twice has to
be put if absent itself.

The beats also are the account: the time from the taking to the last beat of every lease, the dead ones'
included.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.errors import StoreAwayError, StoreError
from assay.store.objects import ObjectStore

PATIENCE_S = 60.0
BEAT_S = 5.0


class LeaseState(NamedTuple):
    """One lease as it stands in the store. Times are seconds since the epoch, of the holder's clock."""

    worker: str
    taken_s: float
    beat_s: float
    is_released: bool

    @property
    def held_s(self) -> float:
        """As far as is known."""
        return max(0.0, self.beat_s - self.taken_s)


class Lease:
    """A lease that this process holds; it beats while the block of `holding` runs."""

    def __init__(self, store: ObjectStore, key: str, state: LeaseState, clock: Clock) -> None:
        self._store = store
        self._key = key
        self._state = state
        self._clock = clock
        self._lock = threading.Lock()

    def is_newest(self) -> bool:
        """Whether nobody has taken over."""
        folder = self._key.rpartition("/")[0]
        return _lease_keys(self._store, folder)[-1:] == [self._key]

    def beat(self, *, release: bool = False) -> None:
        """Say that the holder lives."""
        with self._lock:
            self._state = self._state._replace(beat_s=self._clock.now_s(), is_released=release)
            self._store.put(self._key, _text(self._state))


def take_lease(
    store: ObjectStore, folder: str, *, worker: str, clock: Clock, patience_s: float = PATIENCE_S
) -> Lease | None:
    """The lease on a folder of the store; None where somebody else holds it."""
    keys = _lease_keys(store, folder)
    now_s = clock.now_s()
    if keys:
        newest = _read(store, keys[-1])
        if not newest.is_released and now_s - newest.beat_s < patience_s:
            return None
    number = int(keys[-1][-9:-5]) + 1 if keys else 1
    state = LeaseState(worker, now_s, now_s, False)
    key = f"{folder}/lease-{number:04d}.json"
    if not store.put_if_absent(key, _text(state)):
        return None
    return Lease(store, key, state, clock)


@contextmanager
def holding(lease: Lease, *, beat_s: float = BEAT_S) -> Iterator[Lease]:
    """Beat in the background; release at the end, whatever happens."""
    is_over = threading.Event()

    def keep_beating() -> None:
        while not is_over.wait(beat_s):
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
    """Every lease that was ever taken on a folder, the oldest first."""
    return [_read(store, key) for key in _lease_keys(store, folder)]


def _lease_keys(store: ObjectStore, folder: str) -> list[str]:
    return sorted(item.key for item in store.list(f"{folder}/lease-"))


def _text(state: LeaseState) -> bytes:
    return json.dumps(state._asdict()).encode()


def _read(store: ObjectStore, key: str) -> LeaseState:
    try:
        return LeaseState(**json.loads(store.get(key)))
    except (ValueError, TypeError):
        # Cut short with its holder: nobody beats it any more.
        return LeaseState("", 0.0, 0.0, False)
