"""Registry of live workers and their slots, renewed by each worker.

    worker/ID             of 'assay serve worker': name, slots, time of the last renewal
    session-worker/ID     of 'assay serve sessions'

It informs people and queue estimates only. Leases assign work, so a wrong clock can hide a worker but do no more.
"""

import json
import secrets
from contextlib import suppress
from typing import NamedTuple

from assay.base.clock import Clock
from assay.store.objects import ObjectStore

RENEWAL_S = 10.0
SILENT_S = 30.0
"""A worker without a renewal for this long counts as gone."""
FORGOTTEN_S = 86_400.0
JOB_WORKERS, SESSION_WORKERS = "worker", "session-worker"


class WorkerInfo(NamedTuple):
    """A registered worker."""

    name: str
    """Host and process, for people."""
    slots: int
    """Runs that it may run at once."""
    at_s: float
    """Time of the last renewal by the worker's clock."""


class WorkerRegistry:
    """All workers of a store."""

    def __init__(self, store: ObjectStore, clock: Clock, *, folder: str = JOB_WORKERS) -> None:
        self._store = store
        self._clock = clock
        self._folder = folder

    def live(self) -> list[WorkerInfo]:
        """Return the workers that are alive."""
        now_s = self._clock.now_s()
        return [worker for _, worker in self._all() if now_s - worker.at_s < SILENT_S]

    def drop_stale(self) -> None:
        """Delete registrations that were not renewed for a day."""
        now_s = self._clock.now_s()
        for key, worker in self._all():
            if now_s - worker.at_s > FORGOTTEN_S:
                self._store.delete(key)

    def _all(self) -> list[tuple[str, WorkerInfo]]:
        found = []
        for item in sorted(self._store.list(f"{self._folder}/"), key=lambda listed: listed.key):
            with suppress(ValueError, TypeError):  # truncated by a worker that died
                found.append((item.key, WorkerInfo(**json.loads(self._store.get(item.key)))))
        return found


class WorkerRegistration:
    """Registration of one worker."""

    def __init__(self, store: ObjectStore, clock: Clock, *, name: str, slots: int, folder: str = JOB_WORKERS) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._num_slots = slots
        self._key = f"{folder}/{secrets.token_hex(8)}"
        self._renewed_s: float | None = None

    def renew(self) -> None:
        """Renew the registration; rate-limited."""
        if self._renewed_s is None or self._clock.monotonic_s() - self._renewed_s >= RENEWAL_S:
            line = WorkerInfo(self._name, self._num_slots, self._clock.now_s())
            self._store.put(self._key, json.dumps(line._asdict()).encode())
            self._renewed_s = self._clock.monotonic_s()

    def deregister(self) -> None:
        self._store.delete(self._key)
