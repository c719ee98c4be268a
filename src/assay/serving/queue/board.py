"""Which workers are at work, and how many runs each may have at a time: each says so now and then.

    worker/ID    its name, its places, when it said so

For people, and for what a job is told that it waits for. Nothing is taken or given by it: that is what leases
are for, so a clock that is wrong makes a worker look away, and nothing else.
"""

import json
import secrets
from contextlib import suppress
from typing import NamedTuple

from assay.base.clock import Clock
from assay.store.objects import ObjectStore

SAY_EVERY_S = 10.0
SILENT_S = 30.0
"""Who has said nothing for so long is taken to be gone."""
FORGOTTEN_S = 86_400.0


class WorkerSeen(NamedTuple):
    """A worker, as it said."""

    name: str
    """For people: host and process."""
    places: int
    """Runs that it may have at a time."""
    at_s: float
    """When it said so, by its own clock."""


class WorkerBoard:
    """All workers of a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def seen(self) -> list[WorkerSeen]:
        """Those that are at work."""
        now_s = self._clock.now_s()
        return [each for _, each in self._all() if now_s - each.at_s < SILENT_S]

    def forget_gone(self) -> None:
        """Take down what nobody has renewed for a day."""
        now_s = self._clock.now_s()
        for key, each in self._all():
            if now_s - each.at_s > FORGOTTEN_S:
                self._store.delete(key)

    def _all(self) -> list[tuple[str, WorkerSeen]]:
        found = []
        for item in sorted(self._store.list("worker/"), key=lambda each: each.key):
            with suppress(ValueError, TypeError):  # cut short by a worker that died
                found.append((item.key, WorkerSeen(**json.loads(self._store.get(item.key)))))
        return found


class PlaceOnBoard:
    """One worker's line."""

    def __init__(self, store: ObjectStore, clock: Clock, *, name: str, places: int) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._places = places
        self._key = f"worker/{secrets.token_hex(8)}"
        self._said_s: float | None = None

    def say(self) -> None:
        """That it is at work; as often as one likes."""
        if self._said_s is None or self._clock.monotonic_s() - self._said_s >= SAY_EVERY_S:
            line = WorkerSeen(self._name, self._places, self._clock.now_s())
            self._store.put(self._key, json.dumps(line._asdict()).encode())
            self._said_s = self._clock.monotonic_s()

    def leave(self) -> None:
        """It is at work no more."""
        self._store.delete(self._key)
