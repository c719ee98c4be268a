"""From a lane's prompts to what it learns from: answers, what they earned, advantages. No torch.

    row --group_size times--> prompts --engine--> answers --graders--> rewards --group by group--> advantages
                                                                       --> those that teach --> micro-batches

A group stays in the lane of its row. An answer is a function of weights, prompt and key, and a reward of item
and answer; so a lane is the same in every bit whoever makes it, beside whichever other lanes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from jaxtyping import Float32, Float64

from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare
from assay.training.generation.rollout import Prompt, Rollout
from assay.training.methods.grpo.batch import PromptRow, TaughtAnswer, micro_batches
from assay.training.methods.grpo.config import GrpoConfig, MaskOverlong, ShapeOverlong
from assay.training.methods.grpo.loss import group_advantages, overlong_penalties


class AnswerGroup(NamedTuple):
    """The answers to one prompt, and what became of them."""

    row: PromptRow
    rollouts: Sequence[Rollout]
    rewards: Float64[np.ndarray, "rollout"]
    """NaN where a grader failed."""
    advantages: Float32[np.ndarray, "rollout"]
    """Likewise."""

    @property
    def has_spread(self) -> bool:
        """Some answer earned more than another."""
        return bool(np.nan_to_num(self.advantages).any())


class Tally(NamedTuple):
    """A sum, and what it is over."""

    sum: float
    weight: int


NAMES = ("length", "truncated", "distinct", "reward_spread", "no_spread")
"""What is counted of answers, whatever they are paid for."""


def prompts_of(rows: Sequence[PromptRow], group_size: int, *, seed: int) -> list[Prompt]:
    """So many for each row; the key of a draw follows from the row and the number of the answer."""
    return [
        Prompt(row.tokens, derive_key(seed, row.row_id, sample)) for row in rows for sample in range(group_size)
    ]


def grouped(
    row: PromptRow, rollouts: Sequence[Rollout], rewards: Float64[np.ndarray, "rollout"], config: GrpoConfig
) -> AnswerGroup:
    """With what each answer earned beyond its group's mean."""
    paid, overlong = rewards, config.overlong
    if isinstance(overlong, ShapeOverlong):
        paid = rewards - overlong_penalties(
            np.array([len(each.tokens) for each in rollouts]),
            max_tokens=config.sampling.max_tokens,
            buffer_tokens=overlong.buffer_tokens,
            penalty=overlong.penalty,
        )
    return AnswerGroup(
        row, rollouts, rewards, group_advantages(paid, by_deviation=config.advantage_scale == "group")
    )


def learned_lane(
    lane: int, groups: Sequence[AnswerGroup], config: GrpoConfig, max_tokens: int | None
) -> LaneShare:
    """The lane with the answers that teach in the place of its prompts; `max_tokens`: see `micro_batches`."""
    if config.groups_per_lane is not None:
        groups = [group for group in groups if group.has_spread][: config.groups_per_lane]
    is_masked = isinstance(config.overlong, MaskOverlong)
    answers = [
        TaughtAnswer(group.row, rollout, float(advantage))
        for group in groups
        for rollout, advantage in zip(group.rollouts, group.advantages, strict=True)
        if not np.isnan(advantage) and not (is_masked and rollout.reason == "length")
    ]
    return LaneShare(lane, micro_batches(answers, max_tokens))


def tallies(groups: Sequence[AnswerGroup]) -> dict[str, Tally]:
    """`NAMES` of a lane's answers, those included that teach nothing."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    different = [len({each.tokens.tobytes() for each in group.rollouts}) for group in groups]
    spreads = [float(np.nanstd(each.rewards)) for each in groups if not np.isnan(each.rewards).all()]
    counted = (
        Tally(sum(len(each.tokens) for each in rollouts), len(rollouts)),
        Tally(sum(each.reason == "length" for each in rollouts), len(rollouts)),
        Tally(sum(different), len(rollouts)),
        Tally(sum(spreads), len(spreads)),
        Tally(sum(not group.has_spread for group in groups), len(groups)),
    )
    return dict(zip(NAMES, counted, strict=True))


def digest_of(groups: Sequence[AnswerGroup]) -> int:
    """One of answers, what the sampler said of them, and what they earned: 64 bits."""
    digest = xxhash.xxh3_64()
    for group in groups:
        for rollout in group.rollouts:
            digest.update(len(rollout.tokens).to_bytes(8, "little"))
            digest.update(rollout.tokens.astype(np.int64).tobytes())
            digest.update(rollout.log_probs.astype(np.float32).tobytes())
        digest.update(group.rewards.tobytes())
    return digest.intdigest()
