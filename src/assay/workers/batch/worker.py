"""Processes batches and eval runs under leases, chunk by chunk.

A worker has one task at a time. While others wait, it switches after a time slice: projects take turns, and
within a
project the oldest task goes first. So long tasks do not block other projects, and several workers share the
work.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from assay.base.clock import Clock
from assay.base.errors import FencedError, NotInstalledError, StoreError
from assay.store.leases import Lease, LeaseWatch, holding
from assay.store.objects import ObjectStore
from assay.workers.batch.chunk_processor import ChunkProcessor, DueTask
from assay.workers.batch.models import LeavingError
from assay.workers.fine_tuning.deferred_work import DeferredWork

TERM_S = 20.0
SLICE_S = 20.0
"""How long a task is processed while others wait."""


class InferenceWorker:
    """Processes batches and eval runs in one process."""

    def __init__(
        self,
        store: ObjectStore,
        processors: Sequence[ChunkProcessor[Any, Any]],
        *,
        name: str,
        clock: Clock,
        term_s: float = TERM_S,
        slice_s: float = SLICE_S,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`name`: for people. `term_s`: lease term, after which another worker may take over."""
        self._processors = processors
        self._name = name
        self._notify = notify
        self._clock = clock
        self._term_s = term_s
        self._slice_s = slice_s
        self._watch = LeaseWatch(store, clock)
        self._held: _LeasedTask | None = None
        self._left_to_others = DeferredWork(clock, notify)
        self._last_turn_s: dict[str, float] = {}
        """Project -> when this worker last took a task of it."""

    def run(self, is_over: threading.Event, interval_s: float) -> None:
        """Work until stopped."""
        while not is_over.is_set():
            try:
                if not self.poll():
                    is_over.wait(interval_s)
            except LeavingError:
                break
            except StoreError as error:
                self._notify(f"evals and batches: {error} Retrying.")
                is_over.wait(interval_s)
        with suppress(StoreError):  # otherwise the lease expires
            self.leave()

    def has_something_due(self) -> bool:
        return any(True for processor in self._processors for _ in processor.due())

    def poll(self) -> bool:
        """Advance one task by one step; return whether there was one."""
        due = [
            (processor, task)
            for processor in self._processors
            for task in processor.due()
            if task.task_id not in self._left_to_others
        ]
        if self._held is not None and not self._goes_on(self._held, due):
            self._let_go()
        if self._held is None:
            self._take_next(due)
        if (held := self._held) is None:
            return False
        try:
            held.processor.step(held.task, held.lease.number)
        except FencedError:
            self._let_go()
        except NotInstalledError as error:
            self._let_go()
            self._left_to_others.leave(held.task.task_id, error)
        return True

    def leave(self) -> None:
        """Release the lease."""
        self._let_go()

    def _goes_on(self, held: "_LeasedTask", due: Sequence[tuple[ChunkProcessor[Any, Any], DueTask]]) -> bool:
        tasks = {task for _, task in due}
        if held.task not in tasks:
            return False
        return len(tasks) == 1 or self._clock.monotonic_s() - held.since_s < self._slice_s

    def _take_next(self, due: Sequence[tuple[ChunkProcessor[Any, Any], DueTask]]) -> None:
        def turn(candidate: tuple[ChunkProcessor[Any, Any], DueTask]) -> tuple[float, str]:
            _, task = candidate
            return self._last_turn_s.get(task.project, 0.0), task.task_id.rpartition("-")[2]

        for processor, task in sorted(due, key=turn):
            lease = self._watch.take(f"{processor.kind}/{task.task_id}", worker=self._name, term_s=self._term_s)
            if lease is None:
                continue
            now_s = self._clock.monotonic_s()
            self._held = _LeasedTask(processor, task, lease, now_s)
            if processor.claim(task, lease.number, self._name):
                self._last_turn_s[task.project] = now_s
                return
            self._let_go()  # a later lease exists, so this one is lost

    def _let_go(self) -> None:
        if (held := self._held) is None:
            return
        self._held = None
        held.processor.let_go(held.task.task_id)
        held.release()


class _LeasedTask:
    """A task with its lease, whose heartbeat runs in the background."""

    def __init__(self, processor: ChunkProcessor[Any, Any], task: DueTask, lease: Lease, since_s: float) -> None:
        self.processor = processor
        self.task = task
        self.lease = lease
        self.since_s = since_s
        self._beating = ExitStack()
        self._beating.enter_context(holding(lease))

    def release(self) -> None:
        self._beating.close()
