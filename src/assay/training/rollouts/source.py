"""Rollouts as the source of training samples: generate, grade, buffer, normalize.

    lanes of prompts --RolloutMethod.rollouts--> completions, rewards --(buffer)--> normalized over the step --> samples

The generators of a step are keyed by (seed, step), so a lane has the same rollouts on any rank and in a replay.
With `staleness`, rollouts wait in the buffer for so many steps.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare, StepShare
from assay.distributed.lane_sum import LaneGradients
from assay.distributed.ranks import Ranks
from assay.inference.rollout import GenerationCancelledError
from assay.records.phase import EnterPhase
from assay.training.checkpoint.parts import ROLLOUTS, StatefulPart
from assay.training.checkpoint.reward_cache import RewardCache
from assay.training.numerics import means_of
from assay.training.rollouts.buffer import BufferedLane, RolloutBuffer
from assay.training.samples import LaneSamples, StepCancelledError


class ReplayedRollout(NamedTuple):
    """One completion, generated again alone, with its grade and outcome."""

    prompt: str
    completion: str
    """The text that graders read."""
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended_by: Literal["stop", "length"]
    reward: float | None
    failure: str | None
    """Reason why there is no reward."""
    group_rewards: tuple[float | None, ...]
    """Rewards of all completions of the prompt."""
    advantage: float | None
    outcome: str
    because: str
    """A sentence that explains the outcome."""
    digest: int
    """64-bit digest of tokens and log-probabilities."""
    batched_digest: int
    """The same digest as generated within the batch."""


class RolloutContext(NamedTuple):
    """The step that rollouts are for, and what generating and grading them may use."""

    step: int
    """Optimizer step that trains on them."""
    seed: int
    """One for each step."""
    reward_cache: RewardCache | None = None
    """Stores grades of external judges, which are read from it."""
    is_stopping: Callable[[], bool] = lambda: False
    """If it returns true, `GenerationCancelledError` is raised and nothing has changed."""
    enter_phase: EnterPhase = lambda phase: None
    """Called when generation and grading begin."""


@runtime_checkable
class RolloutMethod(Protocol):
    """A method whose rows are prompts: the model generates the training samples."""

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer updates from one step's rollouts."""
        ...

    @property
    def staleness(self) -> int:
        """Steps between generating rollouts and training on them."""
        ...

    def rollouts(
        self,
        model: nn.Module,
        lanes: Sequence[LaneShare],
        frozen_models: Mapping[str, nn.Module],
        context: RolloutContext,
        *,
        max_tokens: int | None,
    ) -> list[LaneSamples]:
        """Generate and grade the rollouts of a step; return the training samples of each lane.

        The result is a function of weights, rows and `context.seed`: a lane has the same bits alone and beside others,
        because checks and replays recompute single lanes. `model` has all weights. `max_tokens` is
        `LoaderConfig.max_micro_batch_tokens`.
        """
        ...

    @property
    def rollout_costs(self) -> Mapping[str, float]:
        """Costs of the last rollouts in this process, by metric name: seconds, tokens per second, shares."""
        ...

    @property
    def step_statistics(self) -> Sequence[str]:
        """Metrics of rollouts whose means over the step `normalize_advantages` needs; empty if it is not needed."""
        ...

    def normalize_advantages(self, lane: LaneShare, totals: Mapping[str, float]) -> LaneShare:
        """Return the lane with advantages normalized by the step's means (`totals`)."""
        ...

    def check_step(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Raise if a step with these metrics must not become an update; all ranks see the same numbers."""
        ...

    def rollout(
        self,
        model: nn.Module,
        lane: LaneShare,
        frozen_models: Mapping[str, nn.Module],
        context: RolloutContext,
        *,
        row_id: int,
        sample: int,
    ) -> ReplayedRollout:
        """Generate one of the completions of `rollouts` again, alone."""
        ...


class Rollouts:
    """Completions that the current policy generates, or one of `staleness` steps before."""

    def __init__(
        self,
        method: RolloutMethod,
        lane_sum: LaneGradients,
        ranks: Ranks,
        *,
        frozen_models: Mapping[str, nn.Module],
        autocast: AbstractContextManager[object],
        seed: int,
        max_tokens: int | None = None,
        reward_cache: RewardCache | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`lane_sum` provides the model with all weights. `max_tokens`: see `RolloutMethod`.
        `is_stopping` returns whether this rank received SIGTERM, so generation should stop."""
        self._method = method
        self._lane_sum = lane_sum
        self._ranks = ranks
        self._frozen_models = frozen_models
        self._autocast = autocast
        self._seed = seed
        self._max_tokens = max_tokens
        self._reward_cache = reward_cache
        self._is_stopping = is_stopping
        self.updates_per_step = method.updates_per_rollout
        self.lookahead = method.staleness
        self.costs: Mapping[str, float] | None = None
        self._buffer = RolloutBuffer(lane_sum.shares.of_rank(ranks.rank))
        self._statistics: tuple[int, Mapping[str, float]] = (0, {})
        """The last step whose advantages were normalized, and its statistics."""

    @property
    def parts(self) -> Mapping[str, StatefulPart]:
        """Rollouts that are generated and not yet trained."""
        return {ROLLOUTS: self._buffer} if self.lookahead else {}

    def collect(self, share: StepShare, *, step: int) -> list[LaneSamples]:
        """Generate what is missing of the step and, with `staleness`, of those ahead; see `SampleSource`."""
        samples: list[LaneSamples] = []
        is_cancelled = False
        try:
            samples = self._samples_of(share.lanes, step, upcoming=share.upcoming, is_cancellable=True)
        except GenerationCancelledError:
            is_cancelled = True
        self._lane_sum.enter_phase("communication")
        if any(flag for [flag] in self._ranks.all_gather_numbers([is_cancelled])):
            # Some ranks may have finished generating: what this step's weights sampled is discarded on all.
            self._buffer.discard_sampled_by(step - 1)
            raise StepCancelledError
        # Now, because a spot check generates further rollouts.
        self.costs = self._method.rollout_costs
        if names := self._method.step_statistics:
            sums = [[sample.lane.lane, *_numbers(sample, names)] for sample in samples]
            everyone = self._ranks.all_gather_lanes(sums, most=self._lane_sum.shares.most)
            self._statistics = step, means_of(names, everyone)
        return [sample._replace(lane=self._normalized(sample.lane, step)) for sample in samples]

    def recollect(self, lane: LaneShare, *, step: int) -> LaneShare:
        """Generate a lane's rollouts once more, unless it brings them; grades are read from the reward cache."""
        if not self.lookahead:
            [samples] = self._generate(self._lane_sum.whole_model(), [lane], step=step, is_recomputation=True)
            lane = samples.lane
        elif not isinstance(lane, BufferedLane):
            [samples] = self._samples_of([lane], step)
            lane = samples.lane
        return self._normalized(lane, step)

    def recollect_further(self, lane: LaneShare) -> list[int]:
        """Generate what a lane generated for later steps once more; return the digests."""
        upcoming = lane.upcoming if isinstance(lane, BufferedLane) else ()
        model = self._lane_sum.whole_model() if upcoming else None
        return [
            self._generate(model, [prompts], step=later_step, is_recomputation=True)[0].digest
            for later_step, prompts in upcoming
            if model is not None
        ]

    def for_recomputation(self, share: StepShare, *, step: int) -> StepShare:
        """With `staleness`, return the share with its rollouts and with the prompts of those generated ahead."""
        if not self.lookahead:
            return share
        steps = list(enumerate([share.lanes, *share.upcoming], step))
        lanes = [
            self._buffer.for_recomputation(step, lane, {later_step: lanes[index] for later_step, lanes in steps})
            for index, lane in enumerate(share.lanes)
        ]
        return replace(share, lanes=tuple(lanes))

    def check(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._method.check_step(metrics, step=step)

    def release(self, *, step: int) -> None:
        self._buffer.discard_trained(step)

    def replayed(self, lane: LaneShare, *, step: int, row_id: int, sample: int) -> ReplayedRollout:
        """Generate one completion of one prompt of a lane alone, as in step `step`."""
        context, model = self._context(step), self._lane_sum.whole_model()
        with torch.no_grad(), self._autocast:
            return self._method.rollout(model, lane, self._frozen_models, context, row_id=row_id, sample=sample)

    def _context(self, step: int) -> RolloutContext:
        return RolloutContext(step, derive_key(self._seed, "rollout", step), self._reward_cache)

    def _samples_of(
        self,
        lanes: Sequence[LaneShare],
        step: int,
        *,
        upcoming: Sequence[Sequence[LaneShare]] = (),
        is_cancellable: bool = False,
    ) -> list[LaneSamples]:
        """Return the samples of lanes; with `staleness` from the buffer, after it was filled."""
        if not self.lookahead:
            return self._generate(self._policy(), lanes, step=step, is_cancellable=is_cancellable)
        missing = [
            (later_step, step_lanes)
            for later_step, step_lanes in enumerate([lanes, *upcoming], step)
            if not all(self._buffer.has(later_step, lane.lane) for lane in step_lanes)
        ]
        model = self._policy() if missing else None
        for later_step, step_lanes in missing:
            assert model is not None
            samples = self._generate(model, step_lanes, step=later_step, is_cancellable=is_cancellable)
            self._buffer.put(later_step, step_lanes, samples, policy_step=step - 1)
        return [self._buffer.of(step, lane) for lane in lanes]

    def _policy(self) -> nn.Module:
        """Return the model with all weights, gathered if they are sharded."""
        if self._lane_sum.gathers_weights:
            self._lane_sum.enter_phase("synchronisation")
        return self._lane_sum.whole_model()

    def _generate(
        self,
        model: nn.Module,
        lanes: Sequence[LaneShare],
        *,
        step: int,
        is_cancellable: bool = False,
        is_recomputation: bool = False,
    ) -> list[LaneSamples]:
        """Generate and grade the rollouts of some lanes of a step.

        `is_recomputation`: the step's rollouts exist already, so no judge is called and no phase is entered.
        """
        context = self._context(step)
        if is_cancellable:
            context = context._replace(is_stopping=self._is_stopping)
        if not is_recomputation:
            context = context._replace(enter_phase=self._lane_sum.enter_phase)
        elif self._reward_cache is not None:
            context = context._replace(reward_cache=self._reward_cache.read_only())
        with torch.no_grad(), self._autocast:
            return self._method.rollouts(model, lanes, self._frozen_models, context, max_tokens=self._max_tokens)

    def _normalized(self, lane: LaneShare, step: int) -> LaneShare:
        """Return the lane with advantages normalized by the statistics of all lanes of the step."""
        if not self._method.step_statistics:
            return lane
        assert self._statistics[0] == step, (self._statistics, step)
        return self._method.normalize_advantages(lane, self._statistics[1])


def _numbers(samples: LaneSamples, names: Sequence[str]) -> list[float]:
    """Return sum and weight of each metric."""
    return [float(part) for name in names for part in samples.metrics[name]]
