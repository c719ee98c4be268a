"""Works on units of work under leases, in small steps.

    due units --> take the lease --> claim --> step, step, ... --> release
                                       |         | fenced: another worker has it; release
                                       |         | a package is missing: release, and leave it to others for a minute
                                       + a later lease has it; release

    work                unit             lease term  turns                         fenced by
    fine-tuning jobs    a job            20 s        each due job, one step each   the job's log
    batches, eval runs  a task           20 s        slices of 20 s                the task's log
    commits of a run    a checkpoint     60 s        until it is evaluated         the lease, before each chunk
    webhooks            all messages     20 s        for as long as it lives       the lease, before each look

A `WorkHandler` says which units are due and what a step does. A worker may be killed anywhere: its leases expire
after their term. The lease only avoids duplicate work. What must not happen twice is fenced by the lease's number
(`FencedLog`) or put only if absent.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple, Protocol, Self

from assay.base.clock import Clock
from assay.base.errors import FencedError, NotInstalledError, StoreError
from assay.base.json_log import log_fields
from assay.store.leases import Lease, LeaseWatch, holding
from assay.store.objects import ObjectStore

LEASE_TERM_S = 20.0
DEFERRED_S = 60.0
"""How long a unit is left to others after this worker lacked a package for it."""


class LeavingError(Exception):
    """The worker is stopping; the next worker repeats the step."""


class WorkUnit(NamedTuple):
    """Something that one worker at a time works on."""

    unit_id: str
    folder: str
    """Folder of its leases."""
    project: str = ""
    """Projects take turns."""


class WorkHandler(Protocol):
    """Work of one kind."""

    def due(self) -> Iterable[WorkUnit]:
        """Return the units that need a step now. It is read lazily, while their steps are made."""
        ...

    def claim(self, unit: WorkUnit, lease: Lease, worker: str) -> bool:
        """Record that this worker has a unit; return False if a later lease has it."""
        ...

    def step(self, unit: WorkUnit, lease: Lease) -> None:
        """Advance a unit. Raises `FencedError` if a later lease has it, `NotInstalledError` if a package is missing,
        and `LeavingError` if the worker is stopping."""
        ...

    def let_go(self, unit_id: str) -> bool:
        """Release what is open for a unit; return False to keep its lease for now."""
        ...


class _Held(NamedTuple):
    handler: WorkHandler
    unit: WorkUnit
    lease: Lease
    since_s: float
    beating: AbstractContextManager[Lease]
    """Sends heartbeats until it ends."""


class LeasedWorker:
    """One worker. Not thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        handlers: Sequence[WorkHandler],
        *,
        name: str,
        clock: Clock,
        term_s: float = LEASE_TERM_S,
        slice_s: float | None = None,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`name`: for people. `term_s`: after it, another worker may take over.

        `slice_s`: process one unit at a time, and for this long while others wait: projects take turns, and within a
        project the oldest unit goes first. None: give each due unit one step per poll.
        """
        self.watch = LeaseWatch(store, clock)
        self._handlers = handlers
        self._name = name
        self._clock = clock
        self._term_s = term_s
        self._slice_s = slice_s
        self._notify = notify
        self._held: dict[str, _Held] = {}
        """By unit id."""
        self._deferred_until_s: dict[str, float] = {}
        self.polled_s = clock.now_s()
        """When it last looked for work."""
        self.num_errors = 0
        """Looks and steps that failed because of a store."""
        self._last_turn_s: dict[str, float] = {}
        """Project -> when this worker last took a unit of it."""

    def run(self, is_over: threading.Event, interval_s: float, *, of: str) -> None:
        """Work until stopped, then release all leases. `of`: the work, for messages."""
        while not is_over.is_set():
            try:
                if not self.poll() or self._slice_s is None:
                    is_over.wait(interval_s)
            except LeavingError:
                break
            except StoreError as error:
                self._notify(f"{of}: {error} Retrying.")
                is_over.wait(interval_s)
        with suppress(StoreError):  # otherwise the leases expire
            self.leave()

    def poll(self) -> bool:
        """Make the next step, or one of each due unit; return whether there was any."""
        self.polled_s = self._clock.now_s()
        try:
            return self._poll_all() if self._slice_s is None else self._poll_slice(self._slice_s)
        except StoreError:
            self.num_errors += 1
            raise

    @property
    def num_held(self) -> int:
        """Number of leases that it holds."""
        return len(self._held)

    def _poll_all(self) -> bool:
        due, has_stepped = set[str](), False
        for handler in self._handlers:
            for unit in handler.due():
                due.add(unit.unit_id)
                has_stepped |= self._step(handler, unit)
        for unit_id in [*self._held]:
            if unit_id not in due:
                self._let_go(unit_id)
        return has_stepped

    def leave(self) -> None:
        """Release all leases."""
        self.__exit__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        for unit_id in [*self._held]:
            self._let_go(unit_id, raised or (None, None, None))

    def _poll_slice(self, slice_s: float) -> bool:
        due = {
            unit: handler for handler in self._handlers for unit in handler.due() if not self._is_deferred(unit.unit_id)
        }
        for held in [*self._held.values()]:
            is_over = len(due) > 1 and self._clock.monotonic_s() - held.since_s >= slice_s
            if held.unit not in due or is_over:
                self._let_go(held.unit.unit_id)

        def turn(unit: WorkUnit) -> tuple[float, str]:
            return self._last_turn_s.get(unit.project, 0.0), unit.unit_id.rpartition("-")[2]

        units = [held.unit for held in self._held.values()] or sorted(due, key=turn)
        return any(self._step(due[unit], unit) for unit in units)

    def _step(self, handler: WorkHandler, unit: WorkUnit) -> bool:
        """Advance a unit if this worker has or gets its lease; return whether it did."""
        if self._is_deferred(unit.unit_id):
            return False
        held = self._held.get(unit.unit_id) or self._take(handler, unit)
        if held is None:
            return False
        try:
            with log_fields(job=unit.unit_id):
                handler.step(unit, held.lease)
        except FencedError:
            self._let_go(unit.unit_id)
        except NotInstalledError as error:
            self._let_go(unit.unit_id)
            self._deferred_until_s[unit.unit_id] = self._clock.monotonic_s() + DEFERRED_S
            self._notify(f"{unit.unit_id} is left to other workers for {DEFERRED_S:.0f} s: {error}")
        return True

    def _take(self, handler: WorkHandler, unit: WorkUnit) -> _Held | None:
        """Take the lease of a unit; None if another worker has it."""
        lease = self.watch.take(unit.folder, worker=self._name, term_s=self._term_s)
        if lease is None:
            return None
        # Remember the lease before it is recorded. If recording fails, the next step finds that the unit has another
        # lease and releases this one.
        now_s, beating = self._clock.monotonic_s(), holding(lease)
        beating.__enter__()
        self._held[unit.unit_id] = held = _Held(handler, unit, lease, now_s, beating)
        if not handler.claim(unit, lease, self._name):
            self._let_go(unit.unit_id)
            return None
        self._last_turn_s[unit.project] = now_s
        return held

    def _let_go(self, unit_id: str, raised: tuple[Any, Any, Any] = (None, None, None)) -> None:
        held = self._held[unit_id]
        if held.handler.let_go(unit_id):
            del self._held[unit_id]
            held.beating.__exit__(*raised)

    def _is_deferred(self, unit_id: str) -> bool:
        now_s = self._clock.monotonic_s()
        return self._deferred_until_s.get(unit_id, now_s) > now_s
