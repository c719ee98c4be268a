"""Processes eval runs: validate all rows, then grade them chunk by chunk.

created --> read (all rows validated) --> chunk: put if absent --> graded --> ... --> completed
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from assay.base.clock import Clock
from assay.records.eval_run import (
    EvalChunk,
    EvalRunAcquired,
    EvalRunCancelled,
    EvalRunCompleted,
    EvalRunCreated,
    EvalRunEntry,
    EvalRunFailed,
    EvalRunGraded,
    EvalRunRead,
)
from assay.serving.evals.data_source import FileId
from assay.serving.evals.evals import EvalRepository
from assay.serving.evals.runs import EvalRunRepository, EvalRunState, counted, weights_of
from assay.serving.files import FileRepository
from assay.serving.retention import CheckpointRetention
from assay.serving.webhooks.outbox import Outbox
from assay.store.logs.fenced_log import FencedLog
from assay.workers.batch.grading import RunGrader, source_of, wants_samples
from assay.workers.batch.models import EngineModels
from assay.workers.batch.rows import EvalRow, RowRules, lines_of, read_rows, rows_of
from assay.workers.batch.task_handler import ReadAhead, TaskFailedError, TaskHandler
from assay.workers.fine_tuning.training_file import Fault, file_problem

CHUNK_ITEMS = 32
_EVENT_NAMES = {"completed": "succeeded", "failed": "failed", "canceled": "canceled"}
"""Run status -> suffix of the event type."""
EvalRunLog = FencedLog[EvalRunEntry, EvalRunState]


class EvalRunHandler(TaskHandler[EvalRunEntry, EvalRunState, EvalChunk]):
    """Processes all eval runs."""

    cannot = "cannot_grade"
    acquired = EvalRunAcquired

    def __init__(
        self,
        evals: EvalRepository,
        runs: EvalRunRepository,
        files: FileRepository,
        models: EngineModels,
        outbox: Outbox,
        retention: CheckpointRetention,
        *,
        clock: Clock,
        chunk_items: int = CHUNK_ITEMS,
        **limits: Any,
    ) -> None:
        """`limits`: see `TaskHandler`."""
        super().__init__(runs, outbox, clock, **limits)
        self._evals = evals
        self._runs = runs
        self._files = files
        self._models = models
        self._retention = retention
        self._chunk_items = chunk_items
        self._open: dict[str, tuple[ReadAhead[EvalRow], RunGrader]] = {}

    def refresh(self, state: EvalRunState) -> EvalRunState:
        if state.has_ended or self._has_eval(state.created):
            return state
        cancelled = EvalRunCancelled(at_s=self._clock.now_s())
        return self._tasks.change(state.created.run_id, lambda now: None if now.has_ended else cancelled)

    def advance(self, state: EvalRunState, log: EvalRunLog) -> None:
        if state.read is None:
            self._read(state.created, log)
        elif state.needs_chunk:
            self._grade(state, state.read, log)
        else:
            log.append(log.entry(EvalRunCompleted))

    def failed(self, log: EvalRunLog, problem: TaskFailedError) -> EvalRunEntry:
        return log.entry(EvalRunFailed, code=problem.code, message=problem.message)

    def close(self, task_id: str, state: EvalRunState) -> None:
        has_eval = self._has_eval(state.created)
        if state.is_deleted:
            self._runs.forget_results(state)
        if state.is_deleted or not has_eval:
            for weight in weights_of(self._retention, state.created):
                weight.release(task_id)
        if state.ended_s is not None and has_eval:
            event_type = f"eval.run.{_EVENT_NAMES[state.status]}"
            project = state.created.project
            self._outbox.enqueue(task_id, event_type, project=project, ended_s=state.ended_s)

    def let_go(self, unit_id: str) -> bool:
        if (found := self._open.pop(unit_id, None)) is not None:
            found[1].close()
        return True

    def _read(self, created: EvalRunCreated, log: EvalRunLog) -> None:
        """Validate all rows and log their number."""
        source = source_of(created).source
        num_items, faults = read_rows(self._rows(created))
        name = source.id if isinstance(source, FileId) else "data_source.source.content"
        if (problem := file_problem(name, num_items, faults)) is not None:
            raise TaskFailedError("invalid_data_source", problem)
        read = log.entry(EvalRunRead, num_items=num_items, chunk_items=self._chunk_items)
        log.append(read, when=lambda now: now.read is None)

    def _grade(self, state: EvalRunState, read: EvalRunRead, log: EvalRunLog) -> None:
        number = state.num_done
        make = partial(self._graded, state.created, read, number)
        after = self.put_chunk(state.created.run_id, state, log, make, partial(_noted, number, log))
        if after.is_deleted:  # deleted concurrently: delete the new chunk, too
            self._runs.forget_results(after)

    def _graded(self, created: EvalRunCreated, read: EvalRunRead, number: int) -> EvalChunk:
        if created.run_id not in self._open:
            ahead = ReadAhead(lambda: self._rows(created), EvalRow)
            self._open[created.run_id] = ahead, RunGrader(created, self._models)
        ahead, grader = self._open[created.run_id]
        first = number * read.chunk_items
        rows = ahead.rows(first, min(read.chunk_items, read.num_items - first))
        return grader.chunk(rows, first, self._clock.now_s())

    def _rows(self, created: EvalRunCreated) -> Iterator[EvalRow | Fault]:
        """Yield all rows. Raises `TaskFailedError` if their file is gone."""
        source = source_of(created)
        rows = source.source
        if isinstance(rows, FileId) and self._files.find(rows.id, created.project) is None:
            message = f"File {rows.id} was deleted or expired before all of it was graded."
            raise TaskFailedError("file_not_found", message)
        rules = RowRules(created.item_schema, wants_sample=wants_samples(created))
        return rows_of(lines_of(source, self._files), rules)

    def _has_eval(self, created: EvalRunCreated) -> bool:
        return self._evals.find(created.eval_id, created.project) is not None


def _noted(number: int, log: EvalRunLog, chunk: EvalChunk) -> EvalRunEntry:
    return log.entry(EvalRunGraded, chunk=number, **counted(chunk), **chunk.charge())
