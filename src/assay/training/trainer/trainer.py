"""The training loop: read, step, log, commit, until done or stopped.

The trainer owns the cursor. It advances only after an update was applied, and becomes durable together with the
weights of that update. Rows that the loader has prefetched do not matter.
"""

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from typing import Literal, NamedTuple, Protocol

from assay.base.clock import Clock
from assay.base.commit_interval import optimal_commit_interval_s
from assay.base.errors import LossNotFiniteError
from assay.data.loader.batch import StepShare
from assay.data.loader.loader import Loader, with_lookahead
from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.records.phase import Phase
from assay.training.checkpoint.saver import LaneReceipts, Saver
from assay.training.samples import StepCancelledError
from assay.training.trainer.config import TrainerConfig
from assay.training.trainer.context import RankContext
from assay.training.trainer.step import StartedStep, Stepper, StepTotals


class TrainingPosition(NamedTuple):
    """Progress of training."""

    step: int
    """Optimizer steps done."""
    cursor: Cursor
    """Cursor of the next step."""
    skipped: frozenset[int] | None = None
    """Within a window: the row groups that its steps so far were trained without."""

    @classmethod
    def after(cls, commit: Commit, loader: Loader) -> "TrainingPosition":
        """Return the position at which training continues after a commit."""
        is_amid = commit.cursor.step_in_epoch % loader.geometry.window_steps != 0
        skipped = frozenset(group.row_group for group in commit.quarantined) if is_amid else None
        return cls(commit.step, commit.cursor, skipped)


class StepRows(Protocol):
    """Serves the rows of steps; `Loader` does."""

    def shares(
        self, cursor: Cursor, lanes: Sequence[int], num_steps: int, skipped: Collection[int] | None = None
    ) -> Generator[StepShare, None, None]:
        """Yield the lanes' shares of the next steps; see `Loader.shares`."""
        ...

    def next_cursor(self, cursor: Cursor) -> Cursor:
        """Return the cursor after a step."""
        ...


class _Started(NamedTuple):
    step: int
    share: StepShare
    started: StartedStep
    started_s: float
    """When its data were requested."""


ASSUMED_COMMIT_S = 0.05
"""Cost of a commit that `auto` assumes until it has measured one in this attempt."""
Outcome = Literal["finished", "stopped"]
Evaluate = Callable[[int], float | None]
"""Called with the step of a commit; returns the metric that decides which commits are best."""


class Recorder(Protocol):
    """Receives phases and metrics of the rank; see `store.metrics.segment`."""

    def phase(self, name: Phase) -> None: ...

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def sync(self) -> None:
        """Return when all logged metrics are durable."""
        ...


class CommitSchedule:
    """Decides when to commit: after a fixed number of steps, or (`auto`) at the interval that loses the least time.

    `auto` weighs the measured cost of a commit against the failure rate so far. The schedule may depend on the clock
    because the position of a commit changes no trained number; rank 0 decides for all ranks.
    """

    def __init__(self, config: TrainerConfig, clock: Clock, *, failure_s: float) -> None:
        """`failure_s`: mean time between failures so far."""
        self._config = config
        self._clock = clock
        self._failure_s = failure_s
        self._next_s = clock.monotonic_s() + optimal_commit_interval_s(ASSUMED_COMMIT_S, failure_s)

    def is_due(self, step: int, last_step: int) -> bool:
        """Return whether step `step` must commit; all ranks return the same, because no clock is read."""
        config = self._config
        if step == last_step or (config.evaluate_every and step % config.evaluate_every == 0):
            return True
        return config.commit_every != "auto" and step % config.commit_every == 0

    def is_requested(self) -> bool:
        """Return whether this rank's clock requests a commit after the current step (`auto` only)."""
        return self._config.commit_every == "auto" and self._clock.monotonic_s() >= self._next_s

    def committed(self, commit_s: float) -> None:
        """Record that a commit has started and blocked training for `commit_s` seconds."""
        interval_s = optimal_commit_interval_s(commit_s, self._failure_s)
        self._next_s = self._clock.monotonic_s() + interval_s


class Trainer:
    """Trains one rank's lanes to the last step."""

    def __init__(
        self,
        context: RankContext,
        stepper: Stepper,
        saver: Saver,
        recorder: Recorder,
        *,
        lanes: Sequence[int],
        failure_s: float,
        evaluate: Evaluate,
        lookahead: int = 0,
        rows: StepRows | None = None,
        after_update: Callable[[StepTotals], None] = lambda totals: None,
    ) -> None:
        """`lanes` are this rank's. `failure_s`: mean time between failures so far. `lookahead`: see `SampleSource`.

        `rows`: the context's loader by default. `after_update` is called with the totals of each step, before a commit
        that includes the step.
        """
        self._context = context
        self._config, self._clock = context.config, context.clock
        self._stepper = stepper
        self._saver = saver
        self._recorder = recorder
        self._lanes = lanes
        self._schedule = CommitSchedule(self._config, self._clock, failure_s=failure_s)
        self._evaluate = evaluate
        self._lookahead = lookahead
        self._rows = rows or context.loader
        self._after_update = after_update
        self._receipts = LaneReceipts()
        """Receipts of the steps since the last commit."""
        self._committed_step = 0
        self._started: _Started | None = None
        """The step that was started last, unless its totals were read."""
        self._ended_s = -math.inf
        """When the last totals were read."""

    def train(self, position: TrainingPosition, last_step: int | None = None) -> Outcome:
        """Train from `position` to `last_step`, by default the run's; all steps up to the outcome are committed.

        A GPU may run one step ahead of what is known here: a step's totals are read once the next one is started,
        unless it is followed by a commit or a stop. So what is committed is known to be finite.
        """
        last_step = self._context.num_steps if last_step is None else last_step
        self._committed_step, num_left = position.step, last_step - position.step
        with closing(self._rows.shares(position.cursor, self._lanes, num_left, position.skipped)) as read:
            shares = with_lookahead(read, self._lookahead)
            while position.step < last_step:
                started_s = self._clock.monotonic_s()
                self._recorder.phase("data")
                share = next(shares)
                self._saver.raise_failed()
                stop_requested, commit_requested = self._context.is_stopping(), self._schedule.is_requested()
                try:
                    started = self._stepper.start(
                        share, step=position.step + 1, stop_requested=stop_requested, commit_requested=commit_requested
                    )
                except StepCancelledError:
                    # The step left nothing; the next attempt runs it from the start.
                    if position.step > self._committed_step:
                        self._commit(position)
                    self._saver.wait()
                    return "stopped"
                self._read_started()
                position = TrainingPosition(position.step + 1, self._rows.next_cursor(share.cursor))
                self._started = _Started(position.step, share, started, started_s)
                must_read = stop_requested or commit_requested or self._schedule.is_due(position.step, last_step)
                if started.is_running and not must_read:
                    continue
                totals = self._read_started()
                assert totals is not None, position
                if self._commits_now(totals, position.step, last_step):
                    self._commit(position, is_verified=totals.is_verified)
                if totals.stop_requested and position.step < last_step:
                    self._finish_commit()
                    return "stopped"
        self._finish_commit()
        return "finished"

    def _read_started(self) -> StepTotals | None:
        """Wait for the step that was started last, if it was not read, and record it.

        Raises `LossNotFiniteError` if no update was made.
        """
        if self._started is None:
            return None
        (step, share, started, started_s), self._started = self._started, None
        totals = started.totals()
        if not totals.is_applied:
            what = f"the loss of lanes {list(totals.bad_lanes)}" if totals.bad_lanes else "the gradient's norm"
            raise LossNotFiniteError(
                f"step {step}: {what} is not finite, at a learning rate of {totals.learning_rate:.3g} "
                "(trainer.optimizer.learning_rate, where the schedule has brought it). No update was made."
            )
        for lane in share.lanes:
            self._receipts.add(lane, step=step)
        if totals.log is not None:
            self._receipts.add_log(totals.log)
        self._after_update(totals)
        # A step that was started during another one takes the time since that one ended.
        ended_s = self._clock.monotonic_s()
        self._write_down(totals, step, ended_s - max(started_s, self._ended_s))
        self._ended_s = ended_s
        return totals

    def _commits_now(self, totals: StepTotals, step: int, last_step: int) -> bool:
        # With `auto`, a passed spot check commits, so that a run with wrong arithmetic has a commit to go back to.
        is_verified = totals.is_verified and self._config.commit_every == "auto"
        return is_verified or totals.requests_commit() or self._schedule.is_due(step, last_step)

    def _commit(self, position: TrainingPosition, *, is_verified: bool = False) -> None:
        metric = None
        if self._config.evaluate_every and position.step % self._config.evaluate_every == 0:
            self._recorder.phase("evaluation")
            metric = self._evaluate(position.step)
        self._recorder.phase("checkpoint")
        began_s = self._clock.monotonic_s()
        self._recorder.sync()
        self._saver.begin(
            step=position.step,
            cursor=position.cursor,
            from_step=self._committed_step,
            receipts=self._receipts,
            metric=metric,
            is_verified=is_verified,
        )
        self._schedule.committed(self._clock.monotonic_s() - began_s)
        self._committed_step, self._receipts = position.step, LaneReceipts()

    def _finish_commit(self) -> None:
        """Wait until the last commit is written; its state was copied, so training went on meanwhile."""
        self._recorder.phase("checkpoint")
        self._saver.wait()

    def _write_down(self, totals: StepTotals, step: int, seconds: float) -> None:
        self._recorder.log(
            step,
            {
                "loss": totals.loss,
                "gradient_norm": totals.gradient_norm,
                "learning_rate": totals.learning_rate,
                "rows": totals.num_rows,
                "tokens": totals.num_tokens,
                # Trained tokens of a language model. Other methods count rows, which are logged already.
                **({} if totals.weight == totals.num_rows else {"weight": totals.weight}),
                "step_s": seconds,
                "exchange_s": totals.exchange_s,
                **totals.metrics,
                **totals.digests,
                **totals.costs,
            },
        )
