"""Policy losses as sums, and advantages within a group.

    r_t   pi(token t) / pi_old(token t), where pi_old drew it
    s     the geometric mean of a completion's r_t (gspo)
    A     advantage of a completion: reward minus the mean of its group, optionally over the deviation
    e, E  clip_low, clip_high;    c(r) = min(max(r, 1 - e), 1 + E)

    dapo, bnpo    - sum_t min(r_t A, c(r_t) A)                        over the step's tokens
    grpo          - sum_t min(r_t A, c(r_t) A) / completion's tokens  over the step's completions
    dr_grpo       - sum_t min(r_t A, c(r_t) A) / max_tokens           over the step's completions
    gspo          - min(s A, c(s) A)                                  over the step's completions
    cispo         - sum_t stop_gradient(min(r_t, max_ratio)) A log pi over the step's tokens

Sources are in the configuration of each loss. `kl` times a divergence may be added to a token's loss: that of pi from
pi_ref, estimated by r_t k3, k3 = pi_ref / pi - log(pi_ref / pi) - 1 (Schulman 2020, "Approximating KL divergence").
Without r_t, which is 1 at first, its slope would be that of another divergence (DeepSeek-V3.2 2025, arXiv:2512.02556,
section 3.1).

The divisor (tokens or completions) is counted over the whole step, so lanes and micro-batches do not change the mean.
"""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from assay.base.shapes import Bool, Float, Float32, Float64, Int
from assay.inference.remote import LogprobGap
from assay.models.token_scores import row_totals
from assay.training.methods.grpo.config import AnyLoss, CispoLoss, DrGrpoLoss, GrpoLoss, GspoLoss

TOKEN_MEANS = ("dapo", "bnpo", "cispo")
"""Losses that average over tokens; the others average over completions."""


OfTokens = Float[Tensor, "row target"]
"""A number for each token of padded rows; of a line, [1, place]."""
TokenMask = Bool[Tensor, "row target"]


class LineRows(NamedTuple):
    """The completions of a line."""

    row_of: Int[Tensor, "place"]
    lengths: Int[Tensor, "row"]
    """Completion tokens of each row, at least 1."""

    def means(self, values: Float[Tensor, "1 place"]) -> Float[Tensor, "1 place"]:
        """Return at each place the mean of its row."""
        return row_totals(values[0], self.row_of, len(self.lengths))[None] / self.token_lengths()

    def token_lengths(self) -> Int[Tensor, "place"]:
        return self.lengths[self.row_of]


def policy_loss(
    logprobs: OfTokens, old_logprobs: OfTokens, advantages: Float[Tensor, "sample"], loss_mask: TokenMask,
    loss: AnyLoss, rows: LineRows | None = None,
) -> tuple[OfTokens, TokenMask]:  # fmt: skip
    """Return the loss of each token, and whether its ratio was clipped: it has no gradient (cispo: a smaller one).

    With gspo, all tokens of a completion share one ratio. `rows`: those of a line.
    """
    log_ratios = logprobs - old_logprobs
    row_advantages = advantages[:, None] if rows is None else advantages[rows.row_of]
    if isinstance(loss, GspoLoss) and rows is not None:
        log_ratios = rows.means(log_ratios * loss_mask)
    elif isinstance(loss, GspoLoss):
        lengths = loss_mask.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratios = ((log_ratios * loss_mask).sum(dim=1, keepdim=True) / lengths).expand_as(logprobs)
    ratios = log_ratios.exp()
    if isinstance(loss, CispoLoss):
        weights = ratios.detach().clamp(max=loss.max_ratio)
        return -weights * row_advantages * logprobs, (ratios > loss.max_ratio) & (row_advantages > 0)
    lowest, highest = 1 - loss.clip_low, 1 + loss.clip_high
    gains = (ratios * row_advantages).minimum(ratios.clamp(lowest, highest) * row_advantages)
    is_clipped = ((ratios < lowest) & (row_advantages < 0)) | ((ratios > highest) & (row_advantages > 0))
    return -gains, is_clipped


def divergences(logprobs: OfTokens, old_logprobs: OfTokens, reference: OfTokens) -> OfTokens:
    """Return k3 of each token times its ratio, so that mean and gradient are unbiased for tokens of any sampler."""
    differences = reference - logprobs
    return (logprobs - old_logprobs).exp() * (differences.exp() - differences - 1)


def reduced_loss(
    token_losses: OfTokens, loss_mask: TokenMask, loss: AnyLoss, *, max_tokens: int, rows: LineRows | None = None
) -> Float[Tensor, ""]:
    """Return the sum of the loss: over tokens, or over each completion's mean. `rows`: those of a line."""
    if rows is not None:
        divisors = rows.token_lengths() if isinstance(loss, GrpoLoss | GspoLoss) else 1
        divisors = max_tokens if isinstance(loss, DrGrpoLoss) else divisors
        return (token_losses * loss_mask / divisors).sum()
    row_losses = (token_losses * loss_mask).sum(dim=1)
    if isinstance(loss, GrpoLoss | GspoLoss):
        row_losses = row_losses / loss_mask.sum(dim=1).clamp(min=1)
    elif isinstance(loss, DrGrpoLoss):
        row_losses = row_losses / max_tokens
    return row_losses.sum()


def importance_weights(gaps: OfTokens, gap: LogprobGap) -> OfTokens:
    """Return the truncated importance weight of each token of a remote engine: trainer probability over engine
    probability, at most `max_weight`; 1 within the bound. `gaps` are differences of logprobs."""
    return gaps.exp().clamp(max=gap.max_weight).where(gaps.abs() > gap.bound, 1.0)


def group_advantages(rewards: Float64[np.ndarray, "rollout"], *, by_deviation: bool) -> Float32[np.ndarray, "rollout"]:
    """Return the rewards of one prompt's rollouts minus their mean, divided by their deviation if `by_deviation`.

    A failed grade (NaN) is left out of the mean and keeps NaN. If all rewards are equal, advantages are exactly zero.
    """
    graded = rewards[~np.isnan(rewards)]
    if len(graded) == 0 or (graded == graded[0]).all():
        return np.where(np.isnan(rewards), np.nan, 0.0).astype(np.float32)
    centred = rewards - graded.mean()
    scaled: Float64[np.ndarray, "rollout"] = centred / graded.std() if by_deviation else centred
    return scaled.astype(np.float32)
