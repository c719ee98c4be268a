"""The outcome of a prompt, given the rewards of its completions. The audit checks rollout logs by this rule. No torch.

rewards --minus overlong penalties--> no grade: failed | all equal: zero_std | lane is full: surplus
                                      | all with a gradient were cut and masked: overlong | else: trained
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from assay.base.shapes import Float64, Int
from assay.records.rollout_log import GroupRecord, Outcome

if TYPE_CHECKING:
    from assay.training.methods.grpo.config import GrpoConfig


def overlong_penalties(
    lengths: Int[np.ndarray, "rollout"], *, max_tokens: int, buffer_tokens: int, penalty: float
) -> Float64[np.ndarray, "rollout"]:
    """Return the penalties of completions whose length is within `buffer_tokens` of the limit."""
    inside = np.clip(lengths - (max_tokens - buffer_tokens), 0, buffer_tokens)
    penalties: Float64[np.ndarray, "rollout"] = penalty * inside / buffer_tokens
    return penalties


def problems_of(groups: Sequence[GroupRecord], config: "GrpoConfig") -> Iterator[str]:
    """Yield inconsistencies in the rollout log of one lane in one step."""
    num_trained = 0
    for group in groups:
        where = f"step {group.step}, lane {group.lane}, row {group.row_id}"
        if len(group.completions) != config.group_size:
            yield f"{where}: the rollout log has {len(group.completions)} completions, not {config.group_size}"
            continue
        yield from _reward_problems(group, config, where)
        expected = _outcome(group, config, is_full=num_trained == config.groups_per_lane)
        num_trained += expected in ("trained", "overlong")
        if group.outcome != expected:
            yield f"{where}: the rollout log says '{group.outcome}', but by its rewards it is '{expected}'"


def _reward_problems(group: GroupRecord, config: "GrpoConfig", where: str) -> Iterator[str]:
    """Yield rewards that differ from the sum of their scores, and advantages that do not follow from rewards."""
    for sample, entry in enumerate(group.completions):
        scores = [score for score in entry.scores if score is not None]
        failed = bool(entry.failure_kind)
        if len(entry.scores) != len(config.rewards) or failed != (entry.reward is None):
            yield f"{where}, sample {sample}: it has neither a reward nor a failure, or lacks scores"
            continue
        comes_to = math.fsum(reward.weight * score for reward, score in zip(config.rewards, scores, strict=False))
        if not failed and entry.reward != comes_to:
            yield f"{where}, sample {sample}: the reward is {entry.reward}, but its scores sum to {comes_to}"
    shaped = _shaped_rewards(group, config)
    graded = ~np.isnan(shaped)
    advantages = np.array([np.nan if entry.advantage is None else entry.advantage for entry in group.completions])
    if not (graded == ~np.isnan(advantages)).all():
        yield f"{where}: a completion has a reward and no advantage, or an advantage and no reward"
    elif graded.any() and not _is_multiple(advantages[graded], shaped[graded] - shaped[graded].mean()):
        yield (f"{where}: the advantages {_listed(advantages)} do not follow from the rewards {_listed(shaped)}")


def _is_multiple(advantages: Float64[np.ndarray, "graded"], centred: Float64[np.ndarray, "graded"]) -> bool:
    """Return whether advantages are centred rewards times one positive factor."""
    square = float(centred @ centred)
    if not advantages.any() or square == 0.0:
        return not advantages.any() and np.allclose(centred, 0.0, atol=1e-12)
    scale = float(centred @ advantages) / square
    return scale > 0 and np.allclose(advantages, scale * centred, rtol=1e-4, atol=1e-6 * np.abs(advantages).max())


def _outcome(group: GroupRecord, config: "GrpoConfig", *, is_full: bool) -> Outcome:
    """Return the expected outcome; `is_full`: the lane already has `groups_per_lane` groups."""
    shaped = _shaped_rewards(group, config)
    graded = shaped[~np.isnan(shaped)]
    if len(graded) == 0:
        return "failed"
    if (graded == graded[0]).all():
        return "zero_std"
    if is_full:
        return "surplus"
    is_trainable = [not entry.is_cut or config.overlong.type != "mask" for entry in group.completions]
    has_signal = ~np.isnan(shaped) & (shaped != graded.mean()) & np.array(is_trainable)
    return "trained" if has_signal.any() else "overlong"


def _shaped_rewards(group: GroupRecord, config: "GrpoConfig") -> Float64[np.ndarray, "rollout"]:
    """Return the rewards minus overlong penalties; NaN without a reward."""
    rewards = np.array([np.nan if entry.reward is None else entry.reward for entry in group.completions])
    if config.overlong.type != "shape":
        return rewards
    shaped: Float64[np.ndarray, "rollout"] = rewards - overlong_penalties(
        np.array([entry.num_tokens for entry in group.completions]),
        max_tokens=config.sampling.max_tokens,
        buffer_tokens=config.overlong.buffer_tokens,
        penalty=config.overlong.penalty,
    )
    return shaped


def _listed(values: Float64[np.ndarray, "rollout"]) -> str:
    return json.dumps([None if math.isnan(value) else round(value, 6) for value in values.tolist()])
