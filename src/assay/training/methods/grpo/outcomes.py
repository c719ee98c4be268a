"""What becomes of a prompt, by what its answers were paid: the rule that the journal is held to. No torch.

rewards --less what overlong answers pay--> no grade: failed | all equal: no_spread | enough others: over_drawn
                                            | all that would teach was cut: overlong | else: learned
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from assay.base.shapes import Float64, Int
from assay.records.journal import JournaledGroup, Outcome

if TYPE_CHECKING:
    from assay.training.methods.grpo.config import GrpoConfig


def overlong_penalties(
    lengths: Int[np.ndarray, "rollout"], *, max_tokens: int, buffer_tokens: int, penalty: float
) -> Float64[np.ndarray, "rollout"]:
    """What answers pay for the tokens that they have in the buffer before the limit."""
    inside = np.clip(lengths - (max_tokens - buffer_tokens), 0, buffer_tokens)
    paid: Float64[np.ndarray, "rollout"] = penalty * inside / buffer_tokens
    return paid


def problems_of(groups: Sequence[JournaledGroup], config: "GrpoConfig") -> Iterator[str]:
    """What the journal says of a lane in one step, and what cannot be, in words."""
    num_taken = 0
    for group in groups:
        where = f"step {group.step}, lane {group.lane}, row {group.row_id}"
        if len(group.answers) != config.group_size:
            yield f"{where}: the journal has {len(group.answers)} answers of {config.group_size}"
            continue
        yield from _wrongly_paid(group, config, where)
        expected = _outcome(group, config, is_full=num_taken == config.groups_per_lane)
        num_taken += expected in ("learned", "overlong")
        if group.outcome != expected:
            yield f"{where}: the journal says '{group.outcome}', and by its rewards it is '{expected}'"


def _wrongly_paid(group: JournaledGroup, config: "GrpoConfig", where: str) -> Iterator[str]:
    """Rewards that are not what their scores come to, or by which its advantages were not made."""
    for sample, answer in enumerate(group.answers):
        scores = [score for score in answer.scores if score is not None]
        failed = bool(answer.failure_kind)
        if len(answer.scores) != len(config.rewards) or failed != (answer.reward is None):
            yield f"{where}, answer {sample}: the journal has neither a reward nor a reason, or not all scores"
            continue
        comes_to = math.fsum(each.weight * score for each, score in zip(config.rewards, scores, strict=False))
        if not failed and answer.reward != comes_to:
            yield f"{where}, answer {sample}: the reward is {answer.reward}, and its scores come to {comes_to}"
    paid = _paid(group, config)
    graded = ~np.isnan(paid)
    said = np.array([np.nan if each.advantage is None else each.advantage for each in group.answers])
    if not (graded == ~np.isnan(said)).all():
        yield f"{where}: who has a reward has no advantage, or the other way round"
    elif graded.any() and not _is_multiple(said[graded], paid[graded] - paid[graded].mean()):
        yield (
            f"{where}: the advantages by which it was learned, {_listed(said)}, do not follow from the rewards "
            f"{_listed(paid)}"
        )


def _is_multiple(advantages: Float64[np.ndarray, "graded"], centred: Float64[np.ndarray, "graded"]) -> bool:
    """Advantages are rewards less their mean, over something that the whole group shares."""
    square = float(centred @ centred)
    if not advantages.any() or square == 0.0:
        return not advantages.any() and np.allclose(centred, 0.0, atol=1e-12)
    scale = float(centred @ advantages) / square
    return scale > 0 and np.allclose(
        advantages, scale * centred, rtol=1e-4, atol=1e-6 * np.abs(advantages).max()
    )


def _outcome(group: JournaledGroup, config: "GrpoConfig", *, is_full: bool) -> Outcome:
    """`is_full`: as many groups of the lane as are wanted come before it."""
    paid = _paid(group, config)
    graded = paid[~np.isnan(paid)]
    if len(graded) == 0:
        return "failed"
    if (graded == graded[0]).all():
        return "no_spread"
    if is_full:
        return "over_drawn"
    kept = [not each.is_cut or config.overlong.type != "mask" for each in group.answers]
    teaches = ~np.isnan(paid) & (paid != graded.mean()) & np.array(kept)
    return "learned" if teaches.any() else "overlong"


def _paid(group: JournaledGroup, config: "GrpoConfig") -> Float64[np.ndarray, "rollout"]:
    """As answers are compared; NaN where there is no reward."""
    rewards = np.array([np.nan if each.reward is None else each.reward for each in group.answers])
    if config.overlong.type != "shape":
        return rewards
    paid: Float64[np.ndarray, "rollout"] = rewards - overlong_penalties(
        np.array([each.num_tokens for each in group.answers]),
        max_tokens=config.sampling.max_tokens,
        buffer_tokens=config.overlong.buffer_tokens,
        penalty=config.overlong.penalty,
    )
    return paid


def _listed(values: Float64[np.ndarray, "rollout"]) -> str:
    return json.dumps([None if math.isnan(value) else round(value, 6) for value in values.tolist()])
