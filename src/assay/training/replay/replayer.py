"""Runs a run's steps again in one process, for any original world size.

The process holds all lanes, so its partial sums are the whole tree over lanes; rows, dropout and learning rate
are functions of the step. So loss, gradients and weights have the same bits on the same kind of device, with as
many threads per rank. Weights come from a commit, or from the start of the run.
"""

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Self

from assay.base.clock import SystemClock
from assay.data.loader.batch import StepShare
from assay.data.loader.lane_shares import LaneShares
from assay.data.loader.loader import Loader
from assay.distributed.lane_sum import LaneSum
from assay.distributed.ranks import Ranks
from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.store.commit_log import CommitLog
from assay.training.checkpoint.parts import model_state, training_parts
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.reward_cache import RewardCache
from assay.training.checkpoint.saver import Saver, weights_digest
from assay.training.trainer.config import TrainerConfig
from assay.training.trainer.lane_forward import LaneForward
from assay.training.trainer.lane_recomputer import LaneRecomputer
from assay.training.trainer.method import LaneSamples, Method
from assay.training.trainer.optimizer import build_optimizer
from assay.training.trainer.rollout_buffer import with_lookahead
from assay.training.trainer.spot_check import SpotCheck
from assay.training.trainer.step import Stepper, StepTotals, trained_model
from assay.training.trainer.trainer import TrainingPosition, num_steps


class Replayer:
    """Holds a run's state at one step and runs the next ones."""

    def __init__(
        self, method: Method, loader: Loader, ranks: Ranks, log: CommitLog, config: TrainerConfig, *, seed: int
    ) -> None:
        self.loader = loader
        self._num_steps = num_steps(config, loader)
        self._ranks = ranks
        self.model = trained_model(method, config, seed=seed, device=ranks.device)
        self.is_compiled = config.compile
        """True if layers are compiled: their operators are not visible."""
        self.forward = LaneForward(
            method,
            device=ranks.device,
            precision=config.precision,
            seed=seed,
            max_micro_batch_tokens=loader.config.max_micro_batch_tokens,
            reward_cache=RewardCache(log.store, attempt=log.attempt, is_read_only=True),
            lanes=range(loader.config.lanes),
        )
        self.lane_recomputer = LaneRecomputer(self.forward, self.model)
        optimizer = build_optimizer(self.model, config.optimizer)
        self._lane_sum = LaneSum(self.model, ranks, LaneShares.alone(loader.config.lanes), config.gradient_sum)
        self._saver = Saver(
            {**training_parts(self.model, optimizer), **self.forward.parts},
            ranks,
            log,
            RetentionConfig(),
            SystemClock(),
        )
        check = SpotCheck(self.lane_recomputer, self._lane_sum, ranks, is_due=config.is_spot_checked, seed=seed)
        self._stepper = Stepper(
            self.forward,
            self._lane_sum,
            optimizer,
            ranks,
            config=config.optimizer,
            num_steps=self._num_steps,
            spot_check=check,
        )
        self.step = 0
        """Optimizer steps done."""
        self._restored = TrainingPosition(0, Cursor())

    @classmethod
    @contextmanager
    def opened(
        cls, method: Method, loader: Loader, log: CommitLog, config: TrainerConfig, *, seed: int
    ) -> Iterator[Self]:
        """Yield a replayer with the initial weights, as the only rank of a process group."""
        with tempfile.TemporaryDirectory() as folder:
            ranks = Ranks.join(
                rank=0,
                world_size=1,
                rendezvous=(Path(folder) / "meeting").as_uri(),
                num_threads=config.threads_per_rank,
            )
            replayer = None
            try:
                replayer = cls(method, loader, ranks, log, config, seed=seed)
                yield replayer
            finally:
                if replayer is not None:
                    replayer._saver.close()
                    replayer._lane_sum.close()
                ranks.leave()
                if config.compile:
                    from assay.models.compiled import disable_compiled_layers

                    disable_compiled_layers()

    def restore(self, commit: Commit) -> None:
        self._saver.restore(commit)
        self.step = commit.step
        self._restored = TrainingPosition.after(commit, self.loader)

    def shares(self, first_step: int, last_step: int) -> Iterator[StepShare]:
        """Yield all lanes' rows of the steps from `first_step` to `last_step`."""
        lanes = LaneShares.alone(self.loader.config.lanes).of_rank(0)
        index = self._restored
        if first_step - 1 != index.step:
            index = TrainingPosition(first_step - 1, self.loader.cursor_at(first_step - 1))
        steps, further = last_step - first_step + 1, min(self.forward.staleness, self._num_steps - last_step)
        with closing(self.loader.shares(index.cursor, lanes, steps + further, index.skipped)) as shares:
            yield from islice(with_lookahead(shares, self.forward.staleness), steps)

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
        return self.forward.training_samples(lambda: self.model, share.lanes, step=step)

    def weights_digest(self) -> str:
        """Return the digest of the current weights, as commits record it."""
        return weights_digest(model_state(self.model), self._ranks.saving)
