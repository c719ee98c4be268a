"""Processes eval runs: validate all rows, then grade them chunk by chunk.

created --> read (all rows validated) --> chunk: put if absent --> graded --> ... --> completed
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

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
from assay.workers.batch.chunk_processor import TaskFailedError, TaskFailure, TaskWriter
from assay.workers.batch.grading import RunGrader, source_of, wants_samples
from assay.workers.batch.models import Models
from assay.workers.batch.read_ahead import ReadAhead
from assay.workers.batch.rows import EvalRow, RowRules, lines_of, read_rows, rows_of
from assay.workers.fine_tuning.training_file import Fault

CHUNK_ITEMS = 32
_EVENT_NAMES = {"completed": "succeeded", "failed": "failed", "canceled": "canceled"}
"""Run status -> suffix of the event type."""
EvalRunWriter = TaskWriter[EvalRunEntry, EvalRunState]


class EvalRunHandler:
    """See `TaskHandler` for the methods."""

    cannot = "cannot_grade"

    def __init__(
        self,
        evals: EvalRepository,
        runs: EvalRunRepository,
        files: FileRepository,
        models: Models,
        outbox: Outbox,
        retention: CheckpointRetention,
        *,
        clock: Clock,
        chunk_items: int = CHUNK_ITEMS,
    ) -> None:
        self.logs = runs.logs
        self._evals = evals
        self._runs = runs
        self._files = files
        self._models = models
        self._outbox = outbox
        self._retention = retention
        self._clock = clock
        self._chunk_items = chunk_items
        self._open: dict[str, _OpenRun] = {}

    def refresh(self, task_id: str, state: EvalRunState) -> EvalRunState:
        if state.has_ended or self._has_eval(state.created):
            return state
        cancelled = EvalRunCancelled(at_s=self._clock.now_s())
        after = self.logs.log(task_id).append(lambda now: None if now is None or now.has_ended else cancelled)
        assert after is not None
        return after

    def claim_entry(self, writer: EvalRunWriter, worker: str) -> EvalRunAcquired:
        return EvalRunAcquired(at_s=writer.now_s(), lease=writer.lease, worker=worker)

    def needs_chunk(self, state: EvalRunState) -> bool:
        return state.needs_chunk

    def step(self, state: EvalRunState, writer: EvalRunWriter) -> None:
        if state.read is None:
            self._read(state.created, writer)
        elif state.needs_chunk:
            self._grade(state, state.read, writer)
        else:
            completed = EvalRunCompleted(at_s=writer.now_s(), lease=writer.lease)
            writer.put(lambda _: completed)

    def failed(self, writer: EvalRunWriter, problem: TaskFailure) -> EvalRunFailed:
        return EvalRunFailed(at_s=writer.now_s(), lease=writer.lease, code=problem.code, message=problem.message)

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

    def let_go(self, task_id: str) -> None:
        if (found := self._open.pop(task_id, None)) is not None:
            found.grader.close()

    def _read(self, created: EvalRunCreated, writer: EvalRunWriter) -> None:
        """Validate all rows and log their number."""
        source = source_of(created).source
        found = read_rows(self._rows(created))
        name = source.id if isinstance(source, FileId) else "data_source.source.content"
        if (problem := found.problem(name)) is not None:
            raise TaskFailedError(TaskFailure("invalid_data_source", problem))
        read = EvalRunRead(
            at_s=writer.now_s(), lease=writer.lease, num_items=found.num_rows, chunk_items=self._chunk_items
        )
        writer.put(lambda now: read if now.read is None else None)

    def _grade(self, state: EvalRunState, read: EvalRunRead, writer: EvalRunWriter) -> None:
        number = state.num_done
        after = writer.put_chunk(
            self._runs.chunks,
            number,
            make=partial(self._graded, state.created, read, number, writer),
            note=partial(_noted, number, writer),
        )
        if after.is_deleted:  # deleted concurrently: delete the new chunk, too
            self._runs.forget_results(after)

    def _graded(self, created: EvalRunCreated, read: EvalRunRead, number: int, writer: EvalRunWriter) -> EvalChunk:
        run = self._opened(created)
        first = number * read.chunk_items
        rows = run.read_on.rows(first, min(read.chunk_items, read.num_items - first))
        return run.grader.chunk(rows, first, writer.now_s())

    def _opened(self, created: EvalRunCreated) -> "_OpenRun":
        if created.run_id not in self._open:
            read_on = ReadAhead(lambda: self._rows(created), EvalRow)
            self._open[created.run_id] = _OpenRun(read_on, RunGrader(created, self._models))
        return self._open[created.run_id]

    def _rows(self, created: EvalRunCreated) -> Iterator[EvalRow | Fault]:
        """Yield all rows. Raises `TaskFailedError` if their file is gone."""
        source = source_of(created)
        rows = source.source
        if isinstance(rows, FileId) and self._files.find(rows.id, created.project) is None:
            message = f"File {rows.id} was deleted or expired before all of it was graded."
            raise TaskFailedError(TaskFailure("file_not_found", message))
        rules = RowRules(created.item_schema, wants_sample=wants_samples(created))
        return rows_of(lines_of(source, self._files), rules)

    def _has_eval(self, created: EvalRunCreated) -> bool:
        return self._evals.find(created.eval_id, created.project) is not None


def _noted(number: int, writer: EvalRunWriter, chunk: EvalChunk) -> EvalRunGraded:
    return EvalRunGraded(at_s=writer.now_s(), lease=writer.lease, chunk=number, **counted(chunk), **chunk.charge())


class _OpenRun(NamedTuple):
    """A run that is at work."""

    read_on: ReadAhead[EvalRow]
    grader: RunGrader
