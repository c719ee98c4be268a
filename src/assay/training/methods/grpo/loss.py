"""The losses of learning from rewards, as sums; and what rewards are worth within their group.

    r_t   pi(token t) / pi_old(token t), where pi_old drew it
    s     the geometric mean of an answer's r_t (gspo)
    A     advantage of an answer: its reward less its group's mean, perhaps over the group's deviation
    e, E  clip_low, clip_high;    c(r) = min(max(r, 1 - e), 1 + E)

    dapo, bnpo    - sum_t min(r_t A, c(r_t) A)                        over the step's tokens
    grpo          - sum_t min(r_t A, c(r_t) A) / answer's tokens      over the step's answers
    dr_grpo       - sum_t min(r_t A, c(r_t) A) / max_tokens           over the step's answers
    gspo          - min(s A, c(s) A)                                  over the step's answers
    cispo         - sum_t stop_gradient(min(r_t, max_ratio)) A log pi over the step's tokens

Sources stand with each loss's configuration. To a token's loss may be added `kl` times the divergence of pi
from pi_ref, estimated by r_t k3, k3 = pi_ref / pi - log(pi_ref / pi) - 1 (Schulman 2020, "Approximating KL
divergence"). Without r_t, which is 1 at first, its slope would be that of another divergence (DeepSeek-V3.2
2025, arXiv:2512.02556, section 3.1).

What a sum is over (tokens, answers) is counted over the whole step: no cut into lanes or micro-batches moves
it.
"""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from assay.base.shapes import Bool, Float, Float32, Float64
from assay.inference.remote_config import LogprobGap
from assay.training.methods.grpo.config import AnyLoss, CispoLoss, DrGrpoLoss, GrpoLoss, GspoLoss

TOKEN_MEANS = ("dapo", "bnpo", "cispo")
"""Losses whose mean is over tokens; that of the others is over answers."""


class PolicyLoss(NamedTuple):
    """What tokens lose, and where the ratio was cut."""

    of_tokens: Float[Tensor, "row target"]
    is_clipped: Bool[Tensor, "row target"]
    """Nothing is learned there (cispo: less)."""


def policy_loss(
    logprobs: Float[Tensor, "row target"],
    old_logprobs: Float[Tensor, "row target"],
    advantages: Float[Tensor, "row"],
    learned: Bool[Tensor, "row target"],
    loss: AnyLoss,
) -> PolicyLoss:
    """The loss of every token; with gspo each of an answer's tokens has the answer's."""
    log_ratios, of_rows = logprobs - old_logprobs, advantages[:, None]
    if isinstance(loss, GspoLoss):
        lengths = learned.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratios = ((log_ratios * learned).sum(dim=1, keepdim=True) / lengths).expand_as(logprobs)
    ratios = log_ratios.exp()
    if isinstance(loss, CispoLoss):
        weights = ratios.detach().clamp(max=loss.max_ratio)
        return PolicyLoss(-weights * of_rows * logprobs, (ratios > loss.max_ratio) & (of_rows > 0))
    lowest, highest = 1 - loss.clip_low, 1 + loss.clip_high
    gains = (ratios * of_rows).minimum(ratios.clamp(lowest, highest) * of_rows)
    is_clipped = ((ratios < lowest) & (of_rows < 0)) | ((ratios > highest) & (of_rows > 0))
    return PolicyLoss(-gains, is_clipped)


def divergences(
    logprobs: Float[Tensor, "row target"],
    old_logprobs: Float[Tensor, "row target"],
    reference: Float[Tensor, "row target"],
) -> Float[Tensor, "row target"]:
    """k3 of every token times its ratio: neither the mean nor its slope has a bias, whoever drew the token."""
    differences = reference - logprobs
    return (logprobs - old_logprobs).exp() * (differences.exp() - differences - 1)


def summed(
    of_tokens: Float[Tensor, "row target"],
    learned: Bool[Tensor, "row target"],
    loss: AnyLoss,
    *,
    max_tokens: int,
) -> Float[Tensor, ""]:
    """What the step's loss is a sum of: over tokens, or over each answer's mean."""
    of_rows = (of_tokens * learned).sum(dim=1)
    if isinstance(loss, GrpoLoss | GspoLoss):
        of_rows = of_rows / learned.sum(dim=1).clamp(min=1)
    elif isinstance(loss, DrGrpoLoss):
        of_rows = of_rows / max_tokens
    return of_rows.sum()


def truncated_weights(gaps: Float[Tensor, "row target"], gap: LogprobGap) -> Float[Tensor, "row target"]:
    """What each token counts that another engine drew: the trainer's probability over the engine's, cut at the
    largest weight; 1 where they are as good as equal. `gaps` are differences of their logarithms."""
    return gaps.exp().clamp(max=gap.max_weight).where(gaps.abs() > gap.bound, 1.0)


def group_advantages(
    rewards: Float64[np.ndarray, "rollout"], *, by_deviation: bool
) -> Float32[np.ndarray, "rollout"]:
    """What the rollouts of one prompt have earned beyond its mean. NaN, a grade that failed, stands outside:
    its advantage is NaN.

    Rewards that are all the same have nothing to teach: exactly zero.
    """
    graded = rewards[~np.isnan(rewards)]
    if len(graded) == 0 or (graded == graded[0]).all():
        return np.where(np.isnan(rewards), np.nan, 0.0).astype(np.float32)
    centred = rewards - graded.mean()
    scaled: Float64[np.ndarray, "rollout"] = centred / graded.std() if by_deviation else centred
    return scaled.astype(np.float32)
