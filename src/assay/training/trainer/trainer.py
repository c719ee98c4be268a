"""The loop around the step: read, step, write down, commit; until done or asked to stop.

The trainer owns the cursor. It moves only after an update was made, and becomes durable only together with
the weights of that update; what the loader has prefetched does not matter.
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
from assay.training.checkpoint.journal import journal_table
from assay.training.checkpoint.saver import LaneReceipts, Saver
from assay.training.trainer.commit_schedule import CommitSchedule
from assay.training.trainer.config import TrainerConfig
from assay.training.trainer.rollout_buffer import looking_ahead
from assay.training.trainer.step import StepAbandonedError, Stepper, StepTotals


class TrainingPosition(NamedTuple):
    """How far training is."""

    step: int
    """Updates made."""
    cursor: Cursor
    """The cursor of the next step."""
    skipped: frozenset[int] | None = None
    """In the midst of a window: the row groups without which its steps so far were made."""

    @classmethod
    def after(cls, commit: Commit, loader: Loader) -> "TrainingPosition":
        """Where to go on from a commit."""
        is_amid = commit.cursor.step_in_epoch % loader.geometry.window_steps != 0
        skipped = frozenset(each.row_group for each in commit.quarantined) if is_amid else None
        return cls(commit.step, commit.cursor, skipped)


Outcome = Literal["finished", "stopped"]
Evaluate = Callable[[int], float | None]
"""Called at a commit with its step; returns the metric that decides which commits are best."""


class Recorder(Protocol):
    """Who is told what the rank does; see `store.metrics.segment`."""

    def phase(self, name: Phase) -> None:
        """The device enters this phase now."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics of the update that was just made."""
        ...

    def sync(self) -> None:
        """Return when all that was logged is durable."""
        ...


class Trainer:
    """Trains one rank's lanes from one place to the last step."""

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
        stop_asked: Callable[[], bool],
        steps_ahead: int = 0,
    ) -> None:
        self._stepper = stepper
        self._loader = loader
        self._saver = saver
        self._recorder = recorder
        self._clock = clock
        self._config = config
        self._schedule = schedule
        self._evaluate = evaluate
        self._stop_asked = stop_asked
        self._lanes = lanes
        self._steps_ahead = steps_ahead

    def train(self, place: TrainingPosition) -> Outcome:
        """Go on from `place`; every step up to the returned outcome is in a commit.

        A step that is abandoned leaves nothing; who goes on makes it whole."""
        last_step = num_steps(self._config, self._loader)
        committed_step, receipts = place.step, LaneReceipts()
        with closing(
            self._loader.shares(place.cursor, self._lanes, last_step - place.step, place.skipped)
        ) as read:
            shares = looking_ahead(read, self._steps_ahead)
            while place.step < last_step:
                started_s = self._clock.monotonic_s()
                self._recorder.phase("data")
                share = next(shares)
                self._saver.raise_failed()
                try:
                    totals = self._stepper.step(
                        share,
                        step=place.step + 1,
                        stop_asked=self._stop_asked(),
                        commit_asked=self._schedule.asks(),
                    )
                except StepAbandonedError:
                    if place.step > committed_step:
                        self._commit(place, committed_step, receipts, is_verified=False)
                    self._saver.wait()
                    return "stopped"
                self._refuse_not_finite(totals, place)
                place = TrainingPosition(place.step + 1, self._loader.next_cursor(share.cursor))
                self._add_receipts(receipts, share, place.step)
                if totals.journal is not None:
                    receipts.journal.append(journal_table(totals.journal))
                self._write_down(totals, place.step, self._clock.monotonic_s() - started_s)
                if self._commits_now(totals, place.step, last_step):
                    self._commit(place, committed_step, receipts, is_verified=totals.is_verified)
                    committed_step, receipts = place.step, LaneReceipts()
                if totals.stop_asked and place.step < last_step:
                    self._recorder.phase("checkpoint")  # its copy was made; now it is written
                    self._saver.wait()
                    return "stopped"
        self._recorder.phase("checkpoint")
        self._saver.wait()
        return "finished"

    def _commits_now(self, totals: StepTotals, step: int, last_step: int) -> bool:
        # Where commits have no fixed steps, a spot check makes one: what the run goes back to must be there.
        is_verified = totals.is_verified and self._config.commit_every == "auto"
        return is_verified or totals.asks_for_commit() or self._schedule.is_due(step, last_step)

    def _commit(
        self, place: TrainingPosition, committed_step: int, receipts: LaneReceipts, *, is_verified: bool
    ) -> None:
        metric = None
        if self._config.evaluate_every and place.step % self._config.evaluate_every == 0:
            self._recorder.phase("evaluation")
            metric = self._evaluate(place.step)
        self._recorder.phase("checkpoint")
        began_s = self._clock.monotonic_s()
        self._recorder.sync()
        self._saver.begin(
            step=place.step,
            cursor=place.cursor,
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
                # Trained tokens of a language model; of other methods rows, which are there already.
                **({} if totals.weight == totals.num_rows else {"weight": totals.weight}),
                "step_s": seconds,
                "exchange_s": totals.exchange_s,
                **totals.metrics,
                **totals.digests,
                **totals.costs,
            },
        )

    def _refuse_not_finite(self, totals: StepTotals, place: TrainingPosition) -> None:
        if totals.is_made:
            return
        what = f"the loss of lanes {list(totals.bad_lanes)}" if totals.bad_lanes else "the gradient's norm"
        raise LossNotFiniteError(
            f"step {place.step + 1}: {what} is not finite, at a learning rate of {totals.learning_rate:.3g} "
            "(trainer.optimizer.learning_rate, where the schedule has brought it). No update was made."
        )


def num_steps(config: TrainerConfig, loader: Loader) -> int:
    """Optimizer steps of the whole run."""
    everything = config.epochs * loader.steps_per_epoch
    return min(everything, config.max_steps) if config.max_steps is not None else everything
