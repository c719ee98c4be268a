"""Processes tasks of one kind (batches or eval runs) chunk by chunk, under a lease.

    claimed --> read (validated) --> chunk: put if absent --> logged --> ... --> ended

A stored chunk counts, whichever worker stored it, and the log entry is made from it. So each item has one
result,
durable results are not computed again, and a worker that takes over continues after the last chunk. A
`TaskHandler`
defines the kind of task.

A chunk records how long it held a device, and its log entry charges the project once. Projects over their limit
get
no further chunk; their tasks wait.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Generic, NamedTuple, Protocol, TypeVar

from assay.base.clock import Clock
from assay.base.errors import AssayError, FencedError, NotInstalledError, StoreError
from assay.serving.admin.spend import HeldTime, mark_charged
from assay.serving.chunks import Chunks, ChunkT
from assay.serving.log_repository import LogRepository
from assay.store.logs.entry import EntryT
from assay.store.logs.fenced_log import FencedLog
from assay.workers.batch.models import LeavingError, ModelNotLoadedError


class _Created(Protocol):
    @property
    def project(self) -> str: ...


class TaskState(Protocol):
    """State of a task, folded from its log."""

    @property
    def created(self) -> _Created: ...

    @property
    def lease(self) -> int: ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def charges(self) -> Sequence[HeldTime]: ...

    @property
    def num_done(self) -> int:
        """Logged chunks."""
        ...


TaskStateT = TypeVar("TaskStateT", bound=TaskState)


class DueTask(NamedTuple):
    """A task that needs work."""

    task_id: str
    project: str


class TaskFailure(NamedTuple):
    """Why a task failed."""

    code: str
    message: str
    param: str | None = None


class TaskFailedError(Exception):
    """Raised by a handler's step if the whole task has failed."""

    def __init__(self, problem: TaskFailure) -> None:
        super().__init__(problem.message)
        self.problem = problem


class TaskWriter(Generic[EntryT, TaskStateT]):
    """Writes entries and chunks of a task under a lease."""

    def __init__(self, task: DueTask, logs: LogRepository[EntryT, TaskStateT], lease: int, clock: Clock) -> None:
        self.lease = lease
        self._task = task
        self._store = logs.store
        self._log = FencedLog(logs.log(task.task_id), lease, of=task.task_id)
        self._clock = clock

    def now_s(self) -> float:
        return self._clock.now_s()

    def claim(self, entry: EntryT) -> bool:
        """Log that the worker has the task; return False if a later lease has it."""
        return self._log.acquire(entry)

    def put(self, decide: Callable[[TaskStateT], EntryT | None]) -> TaskStateT:
        """Append an entry unless the task has ended. Raises `FencedError` if a later lease has it."""
        return self._log.append(lambda now: None if now.has_ended else decide(now))

    def put_chunk(
        self, chunks: Chunks[ChunkT], number: int, make: Callable[[], ChunkT], note: Callable[[ChunkT], EntryT]
    ) -> TaskStateT:
        """Store the next chunk if it is missing, then log and charge it once."""
        task_id, project = self._task
        chunk = chunks.find(task_id, number)
        if chunk is None:
            chunk = chunks.put(task_id, number, self._timed(make))
        mark_charged(self._store, project, task_id, chunk)
        entry = note(chunk)
        return self.put(lambda now: entry if now.num_done == number else None)

    def _timed(self, make: Callable[[], ChunkT]) -> ChunkT:
        began_s, from_s = self._clock.now_s(), self._clock.monotonic_s()
        chunk = make()
        device_s = self._clock.monotonic_s() - from_s
        charge = {"began_s": began_s, "ended_s": began_s + device_s, "device_s": device_s}
        return chunk.model_copy(update=charge)


class TaskHandler(Protocol[EntryT, TaskStateT]):
    """What to do with tasks of one kind."""

    @property
    def logs(self) -> LogRepository[EntryT, TaskStateT]:
        """The repository of the tasks."""
        ...

    @property
    def cannot(self) -> str:
        """Default code of failures."""
        ...

    def refresh(self, task_id: str, state: TaskStateT) -> TaskStateT:
        """Return the state, after ending a task whose results nobody can read any more."""
        ...

    def claim_entry(self, writer: TaskWriter[EntryT, TaskStateT], worker: str) -> EntryT:
        """Return the entry that claims a task."""
        ...

    def needs_chunk(self, state: TaskStateT) -> bool:
        """Return whether the next step makes a chunk."""
        ...

    def step(self, state: TaskStateT, writer: TaskWriter[EntryT, TaskStateT]) -> None:
        """Advance the task by one step."""
        ...

    def failed(self, writer: TaskWriter[EntryT, TaskStateT], problem: TaskFailure) -> EntryT:
        """Return the entry that fails a task."""
        ...

    def close(self, task_id: str, state: TaskStateT) -> None:
        """Do what follows the end of a task; may run more than once."""
        ...

    def let_go(self, task_id: str) -> None:
        """Release resources that are open for the task."""
        ...


class ChunkProcessor(Generic[EntryT, TaskStateT]):
    """Processes tasks of one kind."""

    def __init__(
        self,
        work: TaskHandler[EntryT, TaskStateT],
        clock: Clock,
        *,
        is_spent: Callable[[str], bool] = lambda project: False,
        debit: Callable[[str, Sequence[HeldTime]], None] = lambda task_id, charges: None,
    ) -> None:
        """`is_spent`: project -> whether it is over its limit. `debit`: called with the charges of ended tasks,
        possibly repeatedly."""
        self._work = work
        self._clock = clock
        self._is_spent = is_spent
        self._debit = debit

    @property
    def kind(self) -> str:
        """Prefix of task ids."""
        return self._work.logs.id_kind

    def due(self) -> Iterator[DueTask]:
        """Yield tasks that may be processed, oldest first; close ended ones."""
        logs, is_spent = self._work.logs, cache(self._is_spent)
        for task_id, state in logs.states(logs.open_ids()):
            state = self._work.refresh(task_id, state)
            if state.has_ended:
                self._close(task_id, state)
            elif not (self._work.needs_chunk(state) and is_spent(state.created.project)):
                yield DueTask(task_id, state.created.project)

    def claim(self, task: DueTask, lease: int, worker: str) -> bool:
        """Log that a worker has a task; return False if a later lease has it."""
        writer = self._writer(task, lease)
        return writer.claim(self._work.claim_entry(writer, worker))

    def step(self, task: DueTask, lease: int) -> None:
        """Advance a task by one step. Raises `FencedError` if a later lease has it."""
        writer = self._writer(task, lease)
        problem = self._stepped(task.task_id, writer)
        if problem is not None:
            failed = self._work.failed(writer, problem)
            writer.put(lambda _: failed)

    def let_go(self, task_id: str) -> None:
        self._work.let_go(task_id)

    def _close(self, task_id: str, state: TaskStateT) -> None:
        self.let_go(task_id)
        self._work.close(task_id, state)
        self._debit(task_id, state.charges)
        self._work.logs.close(task_id)

    def _stepped(self, task_id: str, writer: TaskWriter[EntryT, TaskStateT]) -> TaskFailure | None:
        """Return why the task failed; None after a successful step."""
        state = self._work.logs.state(task_id)
        assert state is not None, "it was due"
        try:
            self._work.step(state, writer)
        except (FencedError, StoreError, LeavingError, NotInstalledError):
            raise
        except TaskFailedError as error:
            return error.problem
        except ModelNotLoadedError as error:
            return TaskFailure(error.code, str(error), "body.model")
        except AssayError as error:
            return TaskFailure(self._work.cannot, str(error))
        except Exception as error:
            logging.getLogger("assay.workers").error("%s", task_id, exc_info=error)
            return TaskFailure("server_error", "Internal server error.")
        return None

    def _writer(self, task: DueTask, lease: int) -> TaskWriter[EntryT, TaskStateT]:
        return TaskWriter(task, self._work.logs, lease, self._clock)
