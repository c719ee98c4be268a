"""From a lane's prompts to what it learns from: answers, what they earned, advantages. No torch.

    row --group_size times--> prompts --engine--> answers --graders--> rewards --group by group--> advantages
                                                                       --> those that teach --> micro-batches

A group stays in the lane of its row. An answer is a function of weights, prompt and key, and a reward of item
and answer; so a lane is the same in every bit whoever makes it, beside whichever other lanes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import xxhash

from assay.base.seeds import derive_key
from assay.base.shapes import Float32, Float64
from assay.data.loader.batch import LaneShare
from assay.inference.remote_config import RemoteSampler
from assay.inference.rollout import Prompt, Rollout
from assay.records.journal import JournaledAnswer, JournaledGroup, Outcome
from assay.training.methods.grpo.batch import ADVANTAGE, PromptRow, TaughtAnswer, micro_batches, scaled
from assay.training.methods.grpo.config import GrpoConfig, MaskOverlong, ShapeOverlong
from assay.training.methods.grpo.loss import group_advantages
from assay.training.methods.grpo.outcomes import overlong_penalties
from assay.training.methods.grpo.rewards import Graded
from assay.training.trainer.numerics import added_in_order


class AnswerGroup(NamedTuple):
    """The answers to one prompt, and what became of them."""

    row: PromptRow
    rollouts: Sequence[Rollout]
    rewards: Float64[np.ndarray, "rollout"]
    """NaN where a grader failed."""
    paid: Float64[np.ndarray, "rollout"]
    """Likewise; less what was overlong."""
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

PAID, PAID_SQUARE = "paid", "paid_square"
"""Means over the graded answers of a step: of rewards as they are compared, and of their squares."""

OUTCOMES: Mapping[Outcome, str] = {
    "learned": "its reward differs from that of others of its group, and the step was made with it.",
    "no_spread": "all graded answers of its group earned the same: its advantage is 0, it taught nothing.",
    "overlong": "it was cut, and method.overlong is mask: it counts in its group's mean and is not learned.",
    "failed": "a grader failed, so it left its group.",
    "over_drawn": "other groups of its lane came first, and method.groups_per_lane learns from no more.",
}
"""What becomes of an answer, and what that means."""


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
            np.array([len(rollout.tokens) for rollout in rollouts]),
            max_tokens=config.sampling.max_tokens,
            buffer_tokens=overlong.buffer_tokens,
            penalty=overlong.penalty,
        )
    return AnswerGroup(
        row, rollouts, rewards, paid, group_advantages(paid, by_deviation=config.advantage_scale == "group")
    )


def learned_lane(
    lane: int, groups: Sequence[AnswerGroup], config: GrpoConfig, max_tokens: int | None
) -> LaneShare:
    """The lane with the answers that teach in the place of its prompts; `max_tokens`: see `micro_batches`."""
    learned = ("learned",) if config.groups_per_lane is not None else ("learned", "no_spread")
    answers = [
        TaughtAnswer(group.row, rollout, float(advantage))
        for group, became in zip(groups, outcomes(groups, config), strict=True)
        for rollout, advantage, outcome in zip(group.rollouts, group.advantages, became, strict=True)
        if outcome in learned
    ]
    return LaneShare(lane, micro_batches(answers, max_tokens))


def outcomes(groups: Sequence[AnswerGroup], config: GrpoConfig) -> list[list[Outcome]]:
    """[group][answer]: what became of each answer of a lane."""
    is_masked, most = isinstance(config.overlong, MaskOverlong), config.groups_per_lane
    with_spread = [place for place, group in enumerate(groups) if group.has_spread]
    beyond = set() if most is None else set(with_spread[most:])

    def of(place: int, group: AnswerGroup, answer: int) -> Outcome:
        if np.isnan(group.advantages[answer]):
            return "failed"
        if is_masked and group.rollouts[answer].reason == "length":
            return "overlong"
        return "over_drawn" if place in beyond else "learned" if group.has_spread else "no_spread"

    return [
        [of(place, group, each) for each in range(len(group.rollouts))] for place, group in enumerate(groups)
    ]


def tallies(groups: Sequence[AnswerGroup]) -> dict[str, Tally]:
    """`NAMES` of a lane's answers, those included that teach nothing."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    different = [len({each.tokens.tobytes() for each in group.rollouts}) for group in groups]
    spreads = [float(np.nanstd(each.rewards)) for each in groups if not np.isnan(each.rewards).all()]
    counted = (
        Tally(sum(len(each.tokens) for each in rollouts), len(rollouts)),
        Tally(sum(each.reason == "length" for each in rollouts), len(rollouts)),
        Tally(sum(different), len(rollouts)),
        Tally(added_in_order(spreads), len(spreads)),
        Tally(sum(not group.has_spread for group in groups), len(groups)),
    )
    return dict(zip(NAMES, counted, strict=True))


def rollout_digest(rollout: Rollout) -> int:
    """One of an answer and what the sampler said of it: 64 bits."""
    digest = xxhash.xxh3_64(rollout.tokens.astype(np.int64).tobytes())
    digest.update(rollout.logprobs.astype(np.float32).tobytes())
    return digest.intdigest()


def moments(groups: Sequence[AnswerGroup]) -> dict[str, Tally]:
    """`PAID` and `PAID_SQUARE` of a lane's answers."""
    paid = [each for group in groups for each in group.paid.tolist() if not math.isnan(each)]
    return {
        PAID: Tally(math.fsum(paid), len(paid)),
        PAID_SQUARE: Tally(math.fsum(each * each for each in paid), len(paid)),
    }


def scaled_lane(lane: LaneShare, totals: Mapping[str, float]) -> LaneShare:
    """With advantages divided by the deviation of all that the step paid, which its `moments` are the means of.

    Where everybody was paid the same, they are 0 and stay 0.
    """
    deviation = math.sqrt(max(0.0, totals[PAID_SQUARE] - totals[PAID] ** 2)) if totals else 0.0
    return replace(lane, micro_batches=tuple(scaled(batch, deviation or 1.0) for batch in lane.micro_batches))


def digest_of(groups: Sequence[AnswerGroup]) -> int:
    """One of answers, what the sampler said of them, and what they earned: 64 bits."""
    digest = xxhash.xxh3_64()
    for group in groups:
        for rollout in group.rollouts:
            digest.update(len(rollout.tokens).to_bytes(8, "little"))
            digest.update(rollout.tokens.astype(np.int64).tobytes())
            digest.update(rollout.logprobs.astype(np.float32).tobytes())
        digest.update(group.rewards.tobytes())
    return digest.intdigest()


def journaled(
    groups: Sequence[AnswerGroup],
    graded: Sequence[Graded],
    learned: LaneShare,
    config: GrpoConfig,
    *,
    step: int,
    graders: str,
) -> tuple[JournaledGroup, ...]:
    """The account of a lane's prompts: `graded` are all their answers, `learned` what the lane learns from."""
    size = config.group_size
    return tuple(
        JournaledGroup(
            step,
            learned.lane,
            group.row.row_id,
            outcome,
            graders,
            tuple(
                _journaled_answer(rollout, paid, advantage, is_kept=isinstance(config.sampler, RemoteSampler))
                for rollout, paid, advantage in zip(
                    group.rollouts, graded[at : at + size], group.advantages.tolist(), strict=True
                )
            ),
        )
        for group, outcome, at in zip(
            groups, _outcomes(groups, learned, config), range(0, len(graded), size), strict=True
        )
    )


def _journaled_answer(rollout: Rollout, graded: Graded, advantage: float, *, is_kept: bool) -> JournaledAnswer:
    """`is_kept`: with its tokens, since nobody here can make it again."""
    failure = graded.failure
    return JournaledAnswer(
        digest=rollout_digest(rollout),
        num_tokens=len(rollout.tokens),
        is_cut=rollout.reason == "length",
        reward=graded.reward,
        scores=graded.scores,
        advantage=None if np.isnan(advantage) else advantage,
        failure_kind="" if failure is None else failure.kind,
        failure="" if failure is None else failure.text,
        tokens=tuple(rollout.tokens.tolist()) if is_kept else None,
        logprobs=tuple(rollout.logprobs.tolist()) if is_kept else None,
    )


def _outcomes(groups: Sequence[AnswerGroup], learned: LaneShare, config: GrpoConfig) -> list[Outcome]:
    """What became of each prompt, by what is in fact learned from; the audit goes by module `outcomes`."""
    taught = {
        row
        for batch in learned.micro_batches
        for row, advantage in zip(batch.row_ids.tolist(), batch.columns[ADVANTAGE].to_pylist(), strict=True)
        if advantage
    }
    found, num_taken = list[Outcome](), 0
    for group in groups:
        is_full = num_taken == config.groups_per_lane
        num_taken += group.has_spread and not is_full
        if group.row.row_id in taught:
            found.append("learned")
        elif np.isnan(group.rewards).all():
            found.append("failed")
        elif not group.has_spread:
            found.append("no_spread")
        else:
            found.append("over_drawn" if is_full else "overlong")
    return found
