"""Processes tasks of one kind (batches or eval runs) chunk by chunk, under a lease.

    claimed --> read (validated) --> chunk: put if absent --> logged --> ... --> ended

A stored chunk counts, whichever worker stored it, and the log entry is processed from it. So each item has one result,
durable results are not computed again, and a worker that takes over continues after the last chunk.

A chunk records how long it held a device, and its log entry charges the project once. Projects over their limit get
no further chunk; their tasks wait.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Generic, TypeVar

from assay.base.clock import Clock
from assay.base.errors import AssayError, FencedError, NotInstalledError, StoreError
from assay.serving.admin.spend import HeldTime, mark_charged
from assay.serving.chunks import ChunkedRepository, ChunkedStateT, ChunkT
from assay.serving.webhooks.outbox import Outbox
from assay.store.leased_worker import LeavingError, WorkUnit
from assay.store.leases import Lease
from assay.store.logs.entry import EntryT
from assay.store.logs.fenced_log import FencedLog
from assay.workers.batch.models import ModelNotLoadedError

RowT = TypeVar("RowT")


class TaskFailedError(Exception):
    """Raised by a step if the whole task has failed."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class TaskHandler(Generic[EntryT, ChunkedStateT, ChunkT]):
    """A `WorkHandler` of all tasks of one kind."""

    cannot: str
    """Default code of failures."""
    acquired: Callable[..., EntryT]
    """Class of the entry that claims a task."""

    def __init__(
        self,
        tasks: ChunkedRepository[EntryT, ChunkedStateT, ChunkT],
        outbox: Outbox,
        clock: Clock,
        *,
        is_spent: Callable[[str], bool] = lambda project: False,
        debit: Callable[[str, Sequence[HeldTime]], None] = lambda task_id, charges: None,
    ) -> None:
        """`is_spent`: project -> whether it is over its limit. `debit`: called with the charges of ended tasks,
        possibly repeatedly."""
        self._tasks = tasks
        self._outbox = outbox
        self._clock = clock
        self._is_spent = is_spent
        self._debit = debit

    def due(self) -> Iterator[WorkUnit]:
        """Yield tasks that may be processed, oldest first; close ended ones."""
        tasks, is_spent = self._tasks, cache(self._is_spent)
        for task_id, state in tasks.states(tasks.open_ids()):
            state = self.refresh(state)
            if state.has_ended:
                self._close(task_id, state)
            elif not (self.needs_chunk(state) and is_spent(state.created.project)):
                yield WorkUnit(task_id, f"{tasks.id_kind}/{task_id}", state.created.project)

    def claim(self, unit: WorkUnit, lease: Lease, worker: str) -> bool:
        log = self._log(unit, lease)
        return log.acquire(log.entry(self.acquired, worker=worker))

    def step(self, unit: WorkUnit, lease: Lease) -> None:
        """Advance a task by one step, or fail it."""
        state, log = self._tasks.state(unit.unit_id), self._log(unit, lease)
        assert state is not None, "it was due"
        try:
            self.advance(state, log)
            return
        except (FencedError, StoreError, LeavingError, NotInstalledError):
            raise
        except TaskFailedError as error:
            problem = error
        except ModelNotLoadedError as error:
            problem = TaskFailedError(error.code, str(error), "body.model")
        except AssayError as error:
            problem = TaskFailedError(self.cannot, str(error))
        except Exception as error:
            logging.getLogger("assay.workers").error("%s", unit.unit_id, exc_info=error)
            problem = TaskFailedError("server_error", "Internal server error.")
        log.append(self.failed(log, problem))

    def let_go(self, unit_id: str) -> bool:  # noqa: ARG002
        return True

    def refresh(self, state: ChunkedStateT) -> ChunkedStateT:
        """Return the state, after ending a task whose results nobody can read any more."""
        return state

    def needs_chunk(self, state: ChunkedStateT) -> bool:
        """Return whether the next step makes a chunk."""
        return state.needs_chunk

    def advance(self, state: ChunkedStateT, log: FencedLog[EntryT, ChunkedStateT]) -> None:
        """Make the next step."""
        raise NotImplementedError

    def failed(self, log: FencedLog[EntryT, ChunkedStateT], problem: TaskFailedError) -> EntryT:
        """Return the entry that fails a task."""
        raise NotImplementedError

    def close(self, task_id: str, state: ChunkedStateT) -> None:
        """Do what follows the end of a task; may run more than once."""
        raise NotImplementedError

    def put_chunk(
        self,
        task_id: str,
        state: ChunkedStateT,
        log: FencedLog[EntryT, ChunkedStateT],
        make: Callable[[], ChunkT],
        noted: Callable[[ChunkT], EntryT],
    ) -> ChunkedStateT:
        """Store the next chunk if it is missing, then log and charge it once. `noted`: chunk -> its log entry."""
        number = state.num_done
        chunk = self._tasks.find_chunk(task_id, number)
        if chunk is None:
            began_s, from_s = self._clock.now_s(), self._clock.monotonic_s()
            processed = make()
            device_s = self._clock.monotonic_s() - from_s
            charge = {"began_s": began_s, "ended_s": began_s + device_s, "device_s": device_s}
            chunk = self._tasks.put_chunk(task_id, number, processed.model_copy(update=charge))
        mark_charged(self._tasks.store, state.created.project, task_id, chunk)
        return log.append(noted(chunk), when=lambda now: now.num_done == number)

    def _close(self, task_id: str, state: ChunkedStateT) -> None:
        self.let_go(task_id)
        self.close(task_id, state)
        self._debit(task_id, state.charges)
        self._tasks.close(task_id)

    def _log(self, unit: WorkUnit, lease: Lease) -> FencedLog[EntryT, ChunkedStateT]:
        log = self._tasks.log(unit.unit_id)
        return FencedLog(log, lease.number, self._clock, of=unit.unit_id, is_over=lambda now: now.has_ended)


class ReadAhead(Generic[RowT]):
    """Rows of `open_rows`, already validated. Reading backwards starts again, which is safe since files are
    immutable."""

    def __init__(self, open_rows: Callable[[], Iterator[object]], row_class: type[RowT]) -> None:
        self._begin = open_rows
        self._row_class = row_class
        self._ahead = open_rows()
        self._next_index = 0

    def rows(self, first: int, number: int) -> list[RowT]:
        """Return `number` rows from index `first`."""
        if first < self._next_index:
            self._ahead, self._next_index = self._begin(), 0
        skipped = first - self._next_index
        found = list(islice(self._ahead, skipped, skipped + number))
        self._next_index = first + number
        rows = [row for row in found if isinstance(row, self._row_class)]
        assert len(rows) == number, (first, number, found)
        return rows
