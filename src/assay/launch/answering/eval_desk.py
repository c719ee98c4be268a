"""Runs of evals at a worker: read whole, then graded chunk by chunk.

    created --> read (every row is checked) --> chunk: put if absent --> graded --> ... --> completed

A chunk that is there counts, whoever put it: its entry is made of what lies there, so an item has one result,
and a chunk that is durable is never graded again.
"""

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.errors import AssayError, FencedError, StoreError
from assay.launch.answering.desk import DueThing
from assay.launch.answering.grading import RunGrader, source_of, wants_samples
from assay.launch.answering.models import LeavingError, ModelNotLoadedError, Models
from assay.launch.answering.read_on import ReadOn
from assay.launch.answering.rows import EvalRow, RowRules, lines_of, read_rows, rows_of
from assay.records.eval_run import (
    EvalRunCancelled,
    EvalRunCompleted,
    EvalRunCreated,
    EvalRunEntry,
    EvalRunFailed,
    EvalRunGraded,
    EvalRunRead,
    EvalRunTaken,
)
from assay.serving.evals.data_source import EvalSource, FileId
from assay.serving.evals.evals import EvalShelf
from assay.serving.evals.runs import EvalRunShelf, EvalRunState, counted
from assay.serving.files import FileShelf
from assay.serving.webhooks.outbox import Outbox

CHUNK_ITEMS = 32
_TOLD = {"completed": "succeeded", "failed": "failed", "canceled": "canceled"}
"""A run's status, as events say it."""


class EvalDesk:
    """Where runs of evals are graded."""

    kind = "evalrun"

    def __init__(
        self,
        evals: EvalShelf,
        runs: EvalRunShelf,
        files: FileShelf,
        models: Models,
        outbox: Outbox,
        *,
        clock: Clock,
        chunk_items: int = CHUNK_ITEMS,
    ) -> None:
        self._evals = evals
        self._runs = runs
        self._files = files
        self._models = models
        self._outbox = outbox
        self._clock = clock
        self._chunk_items = chunk_items
        self._open: dict[str, _OpenRun] = {}

    def due(self) -> Iterator[DueThing]:
        """See `Desk`; so for all that follows."""
        for run_id, state in self._runs.shelf.states(self._runs.shelf.open_ids()):
            created = state.created
            is_wanted = self._evals.find(created.eval_id, created.project) is not None
            if not is_wanted and not state.has_ended:
                state = self._without_eval(run_id)
            if not state.has_ended:
                yield DueThing(run_id, created.project)
                continue
            self.let_go(run_id)
            if state.is_deleted:
                self._runs.forget_results(state)
            if state.ended_s is not None and is_wanted:
                event_type = f"eval.run.{_TOLD[state.status]}"
                self._outbox.plan(run_id, event_type, project=created.project, ended_s=state.ended_s)
            self._runs.shelf.close(run_id)

    def take(self, thing_id: str, lease: int, worker: str) -> bool:
        taken = EvalRunTaken(at_s=self._clock.now_s(), lease=lease, worker=worker)
        state = self._runs.shelf.log(thing_id).append(
            lambda now: taken if now is not None and now.lease < lease else None
        )
        return state is not None and state.lease == lease

    def step(self, thing_id: str, lease: int) -> None:
        try:
            self._step(thing_id, lease)
        except (FencedError, StoreError, LeavingError):
            raise
        except ModelNotLoadedError as error:
            self._fail(thing_id, lease, error.code, str(error))
        except AssayError as error:
            self._fail(thing_id, lease, "cannot_grade", str(error))
        except Exception as error:
            logging.getLogger("assay.launch").error("%s", thing_id, exc_info=error)
            self._fail(thing_id, lease, "server_error", "Something went wrong here, which is our mistake.")

    def let_go(self, thing_id: str) -> None:
        if (found := self._open.pop(thing_id, None)) is not None:
            found.grader.close()

    def _step(self, run_id: str, lease: int) -> None:
        state = self._runs.shelf.state(run_id)
        assert state is not None, "it was due"
        if state.read is None:
            self._read(state, lease)
        elif len(state.graded) < state.num_chunks:
            self._grade(state, state.read, lease)
        else:
            completed = EvalRunCompleted(at_s=self._clock.now_s(), lease=lease)
            self._append(run_id, lease, lambda _: completed)

    def _read(self, state: EvalRunState, lease: int) -> None:
        """Check every row; from now on their number stands."""
        created, source = state.created, source_of(state.created)
        if not self._is_there(created, source):
            self._fail_without_file(created, lease)
            return
        rules = RowRules(created.item_schema, wants_sample=wants_samples(created))
        found = read_rows(rows_of(lines_of(source, self._files), rules))
        name = source.source.id if isinstance(source.source, FileId) else "data_source.source.content"
        if (problem := found.problem(name)) is not None:
            self._fail(created.run_id, lease, "invalid_data_source", problem)
            return
        read = EvalRunRead(
            at_s=self._clock.now_s(), lease=lease, num_items=found.num_rows, chunk_items=self._chunk_items
        )
        self._append(created.run_id, lease, lambda now: read if now.read is None else None)

    def _grade(self, state: EvalRunState, read: EvalRunRead, lease: int) -> None:
        created, number = state.created, len(state.graded)
        chunk = self._runs.chunk(created.run_id, number)
        if chunk is None:
            run = self._opened(created)
            if run is None:
                self._fail_without_file(created, lease)
                return
            first = number * read.chunk_items
            rows = run.read_on.rows(first, min(read.chunk_items, read.num_items - first))
            graded = run.grader.chunk(rows, first, self._clock.now_s())
            chunk = self._runs.put_chunk(created.run_id, number, graded)
        entry = EvalRunGraded(at_s=self._clock.now_s(), lease=lease, chunk=number, **counted(chunk))
        after = self._append(created.run_id, lease, lambda now: entry if len(now.graded) == number else None)
        if after.is_deleted:  # meanwhile: what was put since goes, too
            self._runs.forget_results(after)

    def _opened(self, created: EvalRunCreated) -> "_OpenRun | None":
        """Its rows and its graders; None where its file is gone."""
        if (found := self._open.get(created.run_id)) is not None:
            return found
        source = source_of(created)
        if not self._is_there(created, source):
            return None
        rules = RowRules(created.item_schema, wants_sample=wants_samples(created))
        read_on = ReadOn(lambda: rows_of(lines_of(source, self._files), rules), EvalRow)
        self._open[created.run_id] = found = _OpenRun(read_on, RunGrader(created, self._models))
        return found

    def _is_there(self, created: EvalRunCreated, source: EvalSource) -> bool:
        rows = source.source
        return not isinstance(rows, FileId) or self._files.find(rows.id, created.project) is not None

    def _fail_without_file(self, created: EvalRunCreated, lease: int) -> None:
        file_id = created.data_source["source"]["id"]
        said = f"File {file_id} is gone: it was deleted, or has expired, before all of it was graded."
        self._fail(created.run_id, lease, "file_not_found", said)

    def _without_eval(self, run_id: str) -> EvalRunState:
        """Nobody can ask for its results any more."""
        cancelled = EvalRunCancelled(at_s=self._clock.now_s())
        state = self._runs.shelf.log(run_id).append(
            lambda now: None if now is None or now.has_ended else cancelled
        )
        assert state is not None
        return state

    def _fail(self, run_id: str, lease: int, code: str, message: str) -> None:
        failed = EvalRunFailed(at_s=self._clock.now_s(), lease=lease, code=code, message=message)
        self._append(run_id, lease, lambda _: failed)

    def _append(
        self, run_id: str, lease: int, decide: Callable[[EvalRunState], EvalRunEntry | None]
    ) -> EvalRunState:
        """Put an entry, unless the run is over; `FencedError` where it is another's by now."""

        def decided(now: EvalRunState | None) -> EvalRunEntry | None:
            assert now is not None
            if now.lease != lease:
                raise FencedError(f"eval run {run_id} was taken over by another worker.")
            return None if now.has_ended else decide(now)

        state = self._runs.shelf.log(run_id).append(decided)
        assert state is not None
        return state


class _OpenRun(NamedTuple):
    """A run that is at work."""

    read_on: ReadOn[EvalRow]
    grader: RunGrader
