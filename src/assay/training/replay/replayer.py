"""Runs a run's steps again in one process, for any original world size.

The process holds all lanes, so its partial sums are the whole tree over lanes; rows, dropout and learning rate
are functions of the step. So loss, gradients and weights have the same bits on the same kind of device, with as
many threads per rank. Weights come from a commit, or from the start of the run.
"""

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Self

from assay.base.clock import SystemClock
from assay.data.loader.batch import LaneShare, StepShare
from assay.data.loader.lane_shares import LaneShares
from assay.data.loader.loader import Loader, with_lookahead
from assay.distributed.ranks import Ranks
from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.store.commit_log import CommitLog
from assay.training.checkpoint.parts import model_state
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.saver import Saver, weights_digest
from assay.training.rollouts.source import ReplayedRollout, Rollouts
from assay.training.samples import LaneSamples
from assay.training.trainer.config import TrainerConfig
from assay.training.trainer.context import RankContext, RankParts
from assay.training.trainer.lane_recomputer import LaneRecomputer
from assay.training.trainer.method import Method
from assay.training.trainer.step import StepTotals
from assay.training.trainer.trainer import TrainingPosition


@contextmanager
def lone_rank(config: TrainerConfig) -> Iterator[Ranks]:
    """Yield this process as the only rank of a process group, with the threads of one rank of the run."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks.join(
            rank=0,
            world_size=1,
            rendezvous=(Path(folder) / "meeting").as_uri(),
            num_threads=config.threads_per_rank,
        )
        try:
            yield ranks
        finally:
            ranks.leave()
            if config.compile:
                from assay.models.compiled import disable_compiled_layers

                disable_compiled_layers()


class Replayer:
    """Holds a run's state at one step and runs the next ones."""

    def __init__(self, context: RankContext) -> None:
        self.loader = context.loader
        self._num_steps = context.num_steps
        self._ranks = context.ranks
        self.is_compiled = context.config.compile
        """True if layers are compiled: their operators are not visible."""
        parts = RankParts(context, LaneShares.alone(context.loader.config.lanes))
        self.model, self.forward, self.source = parts.compute_model, parts.forward, parts.source
        assert isinstance(parts.recomputer, LaneRecomputer), "one process holds all weights"
        self.recomputer = parts.recomputer
        self._master = parts.model
        self._stepper, self._lane_sum, self._lanes = parts.stepper, parts.lane_sum, parts.lanes
        self._saver = Saver(parts.state, context.ranks, context.log, RetentionConfig(), context.clock)
        self.step = 0
        """Optimizer steps done."""
        self._restored = TrainingPosition(0, Cursor())

    @classmethod
    @contextmanager
    def opened(
        cls, method: Method, loader: Loader, log: CommitLog, config: TrainerConfig, *, seed: int
    ) -> Iterator[Self]:
        """Yield a replayer with the initial weights, as the only rank of a process group."""
        with lone_rank(config) as ranks:
            replayer = cls(RankContext(ranks, method, loader, config, seed, log, SystemClock(), is_replay=True))
            try:
                yield replayer
            finally:
                replayer._saver.close()
                replayer._lane_sum.close()

    def restore(self, commit: Commit) -> None:
        self._saver.restore(commit)
        self.step = commit.step
        self._restored = TrainingPosition.after(commit, self.loader)

    def shares(self, first_step: int, last_step: int) -> Iterator[StepShare]:
        """Yield all lanes' rows of the steps from `first_step` to `last_step`."""
        index = self._restored
        if first_step - 1 != index.step:
            index = TrainingPosition(first_step - 1, self.loader.cursor_at(first_step - 1))
        steps, further = last_step - first_step + 1, min(self.source.lookahead, self._num_steps - last_step)
        with closing(self.loader.shares(index.cursor, self._lanes, steps + further, index.skipped)) as shares:
            yield from islice(with_lookahead(shares, self.source.lookahead), steps)

    def make(self, share: StepShare) -> StepTotals:
        """Run the next step on its rows. If it is not finite, the weights stay as they were."""
        totals = self._stepper.step(share, step=self.step + 1, stop_requested=False)
        if totals.is_applied:
            self.step += 1
        return totals

    def as_written(self) -> AbstractContextManager[None]:
        """Run layers in eager mode within this context, so that operators are visible; for compiled layers the
        bits differ."""
        if not self.is_compiled:
            return nullcontext()
        from assay.models.compiled import eager_layers

        return eager_layers()

    def training_samples(self, share: StepShare, *, step: int) -> list[LaneSamples]:
        """Return the training samples of a step with the current weights."""
        return self.source.collect(replace(share, upcoming=()), step=step)

    def rollout(self, lane: LaneShare, *, step: int, row_id: int, sample: int) -> ReplayedRollout:
        """Generate one completion of one prompt of a lane alone, with the current weights."""
        assert isinstance(self.source, Rollouts), "its rows are no prompts"
        return self.source.replayed(lane, step=step, row_id=row_id, sample=sample)

    def weights_digest(self) -> str:
        """Return the digest of the current weights, as commits record it."""
        return weights_digest(model_state(self._master), self._ranks.saving)
