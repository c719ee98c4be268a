"""From a lane's prompts to its training samples: completions, rewards, advantages.

    row --group_size times--> prompts --engine--> completions --graders--> rewards --by group--> advantages
                                                          --> those with an advantage --> micro-batches

A group stays in the lane of its row. A completion is a function of weights, prompt and key, and a reward of item and
completion; so a lane has the same bits on any rank and beside any other lanes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import xxhash

from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare
from assay.data.loader.line import LineShape
from assay.inference.remote import RemoteSampler
from assay.inference.rollout import Prompt
from assay.records.rollout_log import GroupRecord, Outcome, RolloutRecord
from assay.scoring.grade import Grade
from assay.training.methods.grpo.batch import ADVANTAGE, RolloutGroup, TrainingSample, micro_batches, rewards_of, scaled
from assay.training.methods.grpo.config import GrpoConfig, MaskOverlong, ShapeOverlong
from assay.training.methods.grpo.loss import group_advantages
from assay.training.methods.grpo.outcomes import overlong_penalties
from assay.training.numerics import MetricSum, added_in_order

NAMES = ("length", "truncated", "distinct", "reward_std", "zero_std")
"""Metrics of rollouts."""

SHAPED_REWARD, SHAPED_REWARD_SQUARE = "shaped_reward", "shaped_reward_square"
"""Means over the step's graded completions: of shaped rewards, and of their squares."""

OUTCOMES: Mapping[Outcome, str] = {
    "trained": "trained: its group's rewards differ, so its advantage is not 0.",
    "zero_std": "all graded completions of its group have the same reward, so its advantage is 0.",
    "overlong": "cut at max_tokens and masked by method.overlong: it counts in its group's mean only.",
    "failed": "a grader failed, so its group goes on without it.",
    "surplus": "dropped: the lane already has `method.groups_per_lane` groups with non-zero advantage.",
}
"""Outcomes of a completion, explained."""


def prompts_of(groups: Sequence[RolloutGroup], group_size: int, *, seed: int) -> list[Prompt]:
    """Return `group_size` prompts for each group; the key of a completion follows from row and sample."""
    return [
        Prompt(group.prompt, derive_key(seed, group.row_id, sample)) for group in groups for sample in range(group_size)
    ]


def with_grades(group: RolloutGroup, grades: Sequence[Grade], config: GrpoConfig) -> RolloutGroup:
    """Return the group with the grades of its rollouts, and the shaped rewards and advantages that follow."""
    shaped_rewards, overlong = rewards_of(grades), config.overlong
    if isinstance(overlong, ShapeOverlong):
        shaped_rewards = shaped_rewards - overlong_penalties(
            np.array([len(rollout.tokens) for rollout in group.rollouts]),
            max_tokens=config.sampling.max_tokens,
            buffer_tokens=overlong.buffer_tokens,
            penalty=overlong.penalty,
        )
    advantages = group_advantages(shaped_rewards, by_deviation=config.advantage_scale == "group")
    return group._replace(grades=grades, shaped_rewards=shaped_rewards, advantages=advantages)


def training_lane(
    lane: int,
    groups: Sequence[RolloutGroup],
    config: GrpoConfig,
    max_tokens: int | None,
    prompt_line: LineShape | None = None,
) -> LaneShare:
    """Return the lane of training samples that replaces a lane of prompts; `max_tokens`: see `micro_batches`.

    If the prompts are in lines, the samples are in lines of the same length.
    """
    line = prompt_line and prompt_line._replace(rows=min(prompt_line.tokens, prompt_line.rows * config.group_size))
    trained_outcomes = ("trained",) if config.groups_per_lane is not None else ("trained", "zero_std")
    samples = [
        TrainingSample(group, rollout, float(advantage))
        for group, group_outcomes in zip(groups, outcomes(groups, config), strict=True)
        for rollout, advantage, outcome in zip(group.rollouts, group.advantages, group_outcomes, strict=True)
        if outcome in trained_outcomes
    ]
    return LaneShare(lane, micro_batches(samples, max_tokens, line))


def outcomes(groups: Sequence[RolloutGroup], config: GrpoConfig) -> list[list[Outcome]]:
    """Return the outcome of each completion of a lane: [group][sample]."""
    is_masked, most = isinstance(config.overlong, MaskOverlong), config.groups_per_lane
    with_signal = [index for index, group in enumerate(groups) if group.has_signal]
    surplus = set() if most is None else set(with_signal[most:])

    def outcome_of(index: int, group: RolloutGroup, sample: int) -> Outcome:
        if np.isnan(group.advantages[sample]):
            return "failed"
        if is_masked and group.rollouts[sample].reason == "length":
            return "overlong"
        return "surplus" if index in surplus else "trained" if group.has_signal else "zero_std"

    return [
        [outcome_of(index, group, sample) for sample in range(len(group.rollouts))]
        for index, group in enumerate(groups)
    ]


def rollout_metrics(groups: Sequence[RolloutGroup]) -> dict[str, MetricSum]:
    """Return the metrics `NAMES` of a lane's rollouts, whether they are trained on or not."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    num_distinct = [len({rollout.tokens.tobytes() for rollout in group.rollouts}) for group in groups]
    rewards = [rewards_of(group.grades) for group in groups]
    deviations = [float(np.nanstd(of_group)) for of_group in rewards if not np.isnan(of_group).all()]
    sums = (
        (sum(len(rollout.tokens) for rollout in rollouts), len(rollouts)),
        (sum(rollout.reason == "length" for rollout in rollouts), len(rollouts)),
        (sum(num_distinct), len(rollouts)),
        (added_in_order(deviations), len(deviations)),
        (sum(not group.has_signal for group in groups), len(groups)),
    )
    return {
        name: MetricSum(torch.tensor(float(total)), weight) for name, (total, weight) in zip(NAMES, sums, strict=True)
    }


def moments(groups: Sequence[RolloutGroup]) -> dict[str, MetricSum]:
    """Return the sums behind `SHAPED_REWARD` and `SHAPED_REWARD_SQUARE`."""
    shaped_rewards = [reward for group in groups for reward in group.shaped_rewards.tolist() if not math.isnan(reward)]
    sums = {
        SHAPED_REWARD: math.fsum(shaped_rewards),
        SHAPED_REWARD_SQUARE: math.fsum(reward * reward for reward in shaped_rewards),
    }
    return {
        name: MetricSum(torch.tensor(total, dtype=torch.float64), len(shaped_rewards)) for name, total in sums.items()
    }


def scaled_lane(lane: LaneShare, totals: Mapping[str, float]) -> LaneShare:
    """Return the lane with advantages divided by the standard deviation of the step's shaped rewards.

    If all shaped rewards are equal, advantages are 0 and stay 0.
    """
    deviation = math.sqrt(max(0.0, totals[SHAPED_REWARD_SQUARE] - totals[SHAPED_REWARD] ** 2)) if totals else 0.0
    return replace(lane, micro_batches=tuple(scaled(batch, deviation or 1.0) for batch in lane.micro_batches))


def digest_of(groups: Sequence[RolloutGroup]) -> int:
    """Return a 64-bit digest of tokens, sampler logprobs and rewards."""
    digest = xxhash.xxh3_64()
    for group in groups:
        for rollout in group.rollouts:
            digest.update(len(rollout.tokens).to_bytes(8, "little"))
            digest.update(rollout.tokens.astype(np.int64).tobytes())
            digest.update(rollout.logprobs.astype(np.float32).tobytes())
        digest.update(rewards_of(group.grades).tobytes())
    return digest.intdigest()


def rollout_log_entries(
    groups: Sequence[RolloutGroup], trained_lane: LaneShare, config: GrpoConfig, *, step: int, graders: str
) -> tuple[GroupRecord, ...]:
    """Return the rollout log of a lane; `trained_lane` are its training samples."""
    is_remote = isinstance(config.sampler, RemoteSampler)
    to_read = set() if trained_lane.lane or not groups else _best_and_worst(groups[0].grades)
    return tuple(
        GroupRecord(
            step,
            trained_lane.lane,
            group.row_id,
            outcome,
            graders,
            tuple(
                _rollout_record(
                    group,
                    sample,
                    [reward.name for reward in config.rewards],
                    with_tokens=is_remote or (number == 0 and sample in to_read),
                    with_logprobs=is_remote,
                )
                for sample in range(len(group.rollouts))
            ),
        )
        for number, (group, outcome) in enumerate(zip(groups, _outcomes(groups, trained_lane, config), strict=True))
    )


def _best_and_worst(grades: Sequence[Grade]) -> set[int]:
    """Return the indices of the completions with the highest and the lowest reward, which the run's page shows."""
    rewards = {index: grade.score for index, grade in enumerate(grades) if grade.score is not None}
    return {choose(rewards, key=rewards.__getitem__) for choose in (max, min)} if rewards else set()


def _rollout_record(
    group: RolloutGroup, sample: int, rewards: Sequence[str], *, with_tokens: bool, with_logprobs: bool
) -> RolloutRecord:
    """Tokens and logprobs of a remote engine's completions are logged because they cannot be generated again."""
    rollout, grade, advantage = group.rollouts[sample], group.grades[sample], float(group.advantages[sample])
    failure = grade.failure
    return RolloutRecord(
        digest=rollout.digest,
        num_tokens=len(rollout.tokens),
        is_cut=rollout.reason == "length",
        reward=grade.score,
        scores=tuple(grade.parts.get(name) for name in rewards),
        advantage=None if np.isnan(advantage) else advantage,
        failure_kind="" if failure is None else failure.kind,
        failure="" if failure is None else failure.text,
        tokens=tuple(rollout.tokens.tolist()) if with_tokens else None,
        logprobs=tuple(rollout.logprobs.tolist()) if with_logprobs else None,
    )


def _outcomes(groups: Sequence[RolloutGroup], trained_lane: LaneShare, config: GrpoConfig) -> list[Outcome]:
    """Return each prompt's outcome, from the samples that are really trained on; the audit uses module
    `outcomes` instead."""
    trained_rows = {
        row
        for batch in trained_lane.micro_batches
        for row, advantage in zip(batch.row_ids.tolist(), batch.columns[ADVANTAGE].to_pylist(), strict=True)
        if advantage
    }
    found, num_trained = list[Outcome](), 0
    for group in groups:
        is_full = num_trained == config.groups_per_lane
        num_trained += group.has_signal and not is_full
        if group.row_id in trained_rows:
            found.append("trained")
        elif np.isnan(group.advantages).all():
            found.append("failed")
        elif not group.has_signal:
            found.append("zero_std")
        else:
            found.append("surplus" if is_full else "overlong")
    return found
