"""Runs of evals: every row is checked, then they are graded chunk by chunk.

created --> read (every row is checked) --> chunk: put if absent --> graded --> ... --> completed
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from assay.base.clock import Clock
from assay.records.eval_run import (
    EvalChunk,
    EvalRunCancelled,
    EvalRunCompleted,
    EvalRunCreated,
    EvalRunEntry,
    EvalRunFailed,
    EvalRunGraded,
    EvalRunRead,
    EvalRunTaken,
)
from assay.serving.evals.data_source import FileId
from assay.serving.evals.evals import EvalShelf
from assay.serving.evals.runs import EvalRunShelf, EvalRunState, counted, weights_of
from assay.serving.files import FileShelf
from assay.serving.retention import CheckpointKeeper
from assay.serving.webhooks.outbox import Outbox
from assay.workers.batch.chunk_processor import CannotError, Hand, ThingProblem
from assay.workers.batch.grading import RunGrader, source_of, wants_samples
from assay.workers.batch.models import Models
from assay.workers.batch.read_ahead import ReadOn
from assay.workers.batch.rows import EvalRow, RowRules, lines_of, read_rows, rows_of
from assay.workers.fine_tuning.training_file import Fault

CHUNK_ITEMS = 32
_TOLD = {"completed": "succeeded", "failed": "failed", "canceled": "canceled"}
"""A run's status, as events say it."""
RunHand = Hand[EvalRunEntry, EvalRunState]


class EvalWork:
    """See `DeskWork`; so for all that follows."""

    cannot = "cannot_grade"

    def __init__(
        self,
        evals: EvalShelf,
        runs: EvalRunShelf,
        files: FileShelf,
        models: Models,
        outbox: Outbox,
        keeper: CheckpointKeeper,
        *,
        clock: Clock,
        chunk_items: int = CHUNK_ITEMS,
    ) -> None:
        self.shelf = runs.shelf
        self._evals = evals
        self._runs = runs
        self._files = files
        self._models = models
        self._outbox = outbox
        self._keeper = keeper
        self._clock = clock
        self._chunk_items = chunk_items
        self._open: dict[str, _OpenRun] = {}

    def wanted(self, thing_id: str, state: EvalRunState) -> EvalRunState:
        if state.has_ended or self._has_eval(state.created):
            return state
        cancelled = EvalRunCancelled(at_s=self._clock.now_s())
        after = self.shelf.log(thing_id).append(lambda now: None if now is None or now.has_ended else cancelled)
        assert after is not None
        return after

    def taken(self, hand: RunHand, worker: str) -> EvalRunTaken:
        return EvalRunTaken(at_s=hand.now_s(), lease=hand.lease, worker=worker)

    def wants_chunk(self, state: EvalRunState) -> bool:
        return state.wants_chunk

    def step(self, state: EvalRunState, hand: RunHand) -> None:
        if state.read is None:
            self._read(state.created, hand)
        elif state.wants_chunk:
            self._grade(state, state.read, hand)
        else:
            completed = EvalRunCompleted(at_s=hand.now_s(), lease=hand.lease)
            hand.put(lambda _: completed)

    def failed(self, hand: RunHand, problem: ThingProblem) -> EvalRunFailed:
        return EvalRunFailed(at_s=hand.now_s(), lease=hand.lease, code=problem.code, message=problem.message)

    def close(self, thing_id: str, state: EvalRunState) -> None:
        is_wanted = self._has_eval(state.created)
        if state.is_deleted:
            self._runs.forget_results(state)
        if state.is_deleted or not is_wanted:
            for weight in weights_of(self._keeper, state.created):
                weight.release(thing_id)
        if state.ended_s is not None and is_wanted:
            event_type = f"eval.run.{_TOLD[state.status]}"
            project = state.created.project
            self._outbox.plan(thing_id, event_type, project=project, ended_s=state.ended_s)

    def let_go(self, thing_id: str) -> None:
        if (found := self._open.pop(thing_id, None)) is not None:
            found.grader.close()

    def _read(self, created: EvalRunCreated, hand: RunHand) -> None:
        """Check every row; from now on their number stands."""
        source = source_of(created).source
        found = read_rows(self._rows(created))
        name = source.id if isinstance(source, FileId) else "data_source.source.content"
        if (problem := found.problem(name)) is not None:
            raise CannotError(ThingProblem("invalid_data_source", problem))
        read = EvalRunRead(
            at_s=hand.now_s(), lease=hand.lease, num_items=found.num_rows, chunk_items=self._chunk_items
        )
        hand.put(lambda now: read if now.read is None else None)

    def _grade(self, state: EvalRunState, read: EvalRunRead, hand: RunHand) -> None:
        number = state.num_made
        after = hand.put_chunk(
            self._runs.chunks,
            number,
            make=partial(self._graded, state.created, read, number, hand),
            note=partial(_noted, number, hand),
        )
        if after.is_deleted:  # meanwhile: what was put since goes, too
            self._runs.forget_results(after)

    def _graded(self, created: EvalRunCreated, read: EvalRunRead, number: int, hand: RunHand) -> EvalChunk:
        run = self._opened(created)
        first = number * read.chunk_items
        rows = run.read_on.rows(first, min(read.chunk_items, read.num_items - first))
        return run.grader.chunk(rows, first, hand.now_s())

    def _opened(self, created: EvalRunCreated) -> "_OpenRun":
        """Its rows and its graders."""
        if created.run_id not in self._open:
            read_on = ReadOn(lambda: self._rows(created), EvalRow)
            self._open[created.run_id] = _OpenRun(read_on, RunGrader(created, self._models))
        return self._open[created.run_id]

    def _rows(self, created: EvalRunCreated) -> Iterator[EvalRow | Fault]:
        """Its rows from the first; `CannotError` where their file is gone."""
        source = source_of(created)
        rows = source.source
        if isinstance(rows, FileId) and self._files.find(rows.id, created.project) is None:
            said = f"File {rows.id} is gone: it was deleted, or has expired, before all of it was graded."
            raise CannotError(ThingProblem("file_not_found", said))
        rules = RowRules(created.item_schema, wants_sample=wants_samples(created))
        return rows_of(lines_of(source, self._files), rules)

    def _has_eval(self, created: EvalRunCreated) -> bool:
        """Whether anybody can ask for its results."""
        return self._evals.find(created.eval_id, created.project) is not None


def _noted(number: int, hand: RunHand, chunk: EvalChunk) -> EvalRunGraded:
    return EvalRunGraded(at_s=hand.now_s(), lease=hand.lease, chunk=number, **counted(chunk), **chunk.charge())


class _OpenRun(NamedTuple):
    """A run that is at work."""

    read_on: ReadOn[EvalRow]
    grader: RunGrader
