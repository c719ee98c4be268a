"""The training loop: read, step, log, commit, until done or stopped.

The trainer owns the cursor. It advances only after an update was applied, and becomes durable together with the
weights of that update. Rows that the loader has prefetched do not matter.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Literal, NamedTuple, Protocol

from assay.base.clock import Clock
from assay.base.errors import LossNotFiniteError
from assay.data.loader.batch import StepShare
from assay.data.loader.loader import Loader
from assay.data.loader.receipts import receipt
from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.records.phase import Phase
from assay.training.checkpoint.rollout_log import rollout_log_table
from assay.training.checkpoint.saver import LaneReceipts, Saver
from assay.training.trainer.commit_schedule import CommitSchedule
from assay.training.trainer.config import TrainerConfig
from assay.training.trainer.rollout_buffer import with_lookahead
from assay.training.trainer.step import StepCancelledError, Stepper, StepTotals


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


class Trainer:
    """Trains one rank's lanes to the last step."""

    def __init__(
        self,
        *,
        stepper: Stepper,
        loader: Loader,
        saver: Saver,
        lanes: Sequence[int],
        recorder: Recorder,
        clock: Clock,
        config: TrainerConfig,
        schedule: CommitSchedule,
        evaluate: Evaluate,
        stop_requested: Callable[[], bool],
        staleness: int = 0,
    ) -> None:
        self._stepper = stepper
        self._loader = loader
        self._saver = saver
        self._recorder = recorder
        self._clock = clock
        self._config = config
        self._schedule = schedule
        self._evaluate = evaluate
        self._is_stop_requested = stop_requested
        self._lanes = lanes
        self._staleness = staleness

    def train(self, position: TrainingPosition) -> Outcome:
        """Train from `position`; all steps up to the returned outcome are committed.

        A cancelled step leaves nothing; the next attempt runs it from the start.
        """
        last_step = num_steps(self._config, self._loader)
        committed_step, receipts = position.step, LaneReceipts()
        with closing(
            self._loader.shares(position.cursor, self._lanes, last_step - position.step, position.skipped)
        ) as read:
            shares = with_lookahead(read, self._staleness)
            while position.step < last_step:
                started_s = self._clock.monotonic_s()
                self._recorder.phase("data")
                share = next(shares)
                self._saver.raise_failed()
                try:
                    totals = self._stepper.step(
                        share,
                        step=position.step + 1,
                        stop_requested=self._is_stop_requested(),
                        commit_requested=self._schedule.is_requested(),
                    )
                except StepCancelledError:
                    if position.step > committed_step:
                        self._commit(position, committed_step, receipts, is_verified=False)
                    self._saver.wait()
                    return "stopped"
                self._refuse_not_finite(totals, position)
                position = TrainingPosition(position.step + 1, self._loader.next_cursor(share.cursor))
                self._add_receipts(receipts, share, position.step)
                if totals.rollout_log is not None:
                    receipts.rollout_log.append(rollout_log_table(totals.rollout_log))
                self._write_down(totals, position.step, self._clock.monotonic_s() - started_s)
                if self._commits_now(totals, position.step, last_step):
                    self._commit(position, committed_step, receipts, is_verified=totals.is_verified)
                    committed_step, receipts = position.step, LaneReceipts()
                if totals.stop_requested and position.step < last_step:
                    self._recorder.phase("checkpoint")  # the state was copied; wait until it is written
                    self._saver.wait()
                    return "stopped"
        self._recorder.phase("checkpoint")
        self._saver.wait()
        return "finished"

    def _commits_now(self, totals: StepTotals, step: int, last_step: int) -> bool:
        # With `auto`, a passed spot check commits, so that a run with wrong arithmetic has a commit to go back to.
        is_verified = totals.is_verified and self._config.commit_every == "auto"
        return is_verified or totals.requests_commit() or self._schedule.is_due(step, last_step)

    def _commit(
        self, position: TrainingPosition, committed_step: int, receipts: LaneReceipts, *, is_verified: bool
    ) -> None:
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
            from_step=committed_step,
            receipts=receipts,
            metric=metric,
            is_verified=is_verified,
        )
        self._schedule.committed(self._clock.monotonic_s() - began_s)

    def _add_receipts(self, receipts: LaneReceipts, share: StepShare, step: int) -> None:
        for lane in share.lanes:
            num_rows, digest = 0, 0
            for micro_batch in lane.micro_batches:
                rows, part = receipt(micro_batch.row_ids)
                num_rows, digest = num_rows + rows, (digest + part) % 2**64
            receipts.add(step=step, lane=lane.lane, num_rows=num_rows, digest=digest)
            receipts.quarantined.extend(lane.quarantined)

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

    def _refuse_not_finite(self, totals: StepTotals, position: TrainingPosition) -> None:
        if totals.is_applied:
            return
        what = f"the loss of lanes {list(totals.bad_lanes)}" if totals.bad_lanes else "the gradient's norm"
        raise LossNotFiniteError(
            f"step {position.step + 1}: {what} is not finite, at a learning rate of {totals.learning_rate:.3g} "
            "(trainer.optimizer.learning_rate, where the schedule has brought it). No update was made."
        )


def num_steps(config: TrainerConfig, loader: Loader) -> int:
    """Return the number of optimizer steps of the whole run."""
    everything = config.epochs * loader.steps_per_epoch
    return min(everything, config.max_steps) if config.max_steps is not None else everything
