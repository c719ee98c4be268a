"""Non-inferiority tests of guardrails, and the items that an undecided guardrail lacks.

A guardrail passes if the upper bound of the harm is below its margin, fails if the lower bound is above it, and is
undecided in between. The bounds hold with any power: a wide interval that clears the margin errs as rarely as a narrow
one. All guardrails must pass, so their errors need no correction (an intersection-union test), but their powers
multiply: four guardrails, each with a standard error of 0.4 of its margin, pass a harmless candidate four times in ten.
With SE <= margin / 3.9, each passes 98.7% of the time. An undecided guardrail with a larger error is *undersized*, and
its verdict names the items that it lacks.

Harm to one item in a hundred is often absent from fifty items, which then do not vary. The items' error is therefore at
least what an exact bound of the mean harm implies (`failure_rate.mean_upper`; for right-or-wrong items, Clopper &
Pearson's), with clusters as trials. For scores that are shares, an unobserved item may lose a whole mark; for other
scores, as much as the differing items did in the mean of squares. If no item differs, there is no bound.

    differences[seed, item] --> Harm --> GuardrailResult
"""

import math
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

from assay.base.shapes import Float64, Shaped
from assay.statistics.effect import Effect, Leading, item_shares, paired_effect
from assay.statistics.failure_rate import mean_upper, rate_upper
from assay.statistics.interval import ONE_SIDED, cluster_sums, normal_quantile
from assay.statistics.power import VarianceComponents, power

MARGINS_PER_ERROR = 3.9
"""Minimum of margin / standard error for a sized guardrail: z(.95) + z(.987)."""

GuardrailVerdict = Literal["pass", "fail", "undecided", "undersized"]


class GuardrailResult(NamedTuple):
    """One guardrail's harm (above 0 is worse) against its margin, in the score's unit."""

    verdict: GuardrailVerdict
    harm: float
    lower: float
    upper: float
    """One-sided bounds."""
    standard_error: float
    items_factor: float
    """Factor of items needed to size the guardrail; 1 if sized, infinite if the seeds' variance alone is too large."""


class Harm(NamedTuple):
    """How much worse a candidate is (above 0 is worse), with one-sided bounds, over leading axes."""

    effect: Effect
    """Effect with reversed sign; its item variance allows for rare harm."""
    lower: Leading
    upper: Leading
    rare_variance: Leading
    """Part of the item variance for unobserved rare harm; it falls with the square of the items."""

    def within(self, limit: float) -> "Harm":
        """Return the harm with finite bounds clipped to +-`limit`."""
        lower, upper = (
            np.where(np.isfinite(bound), np.clip(bound, -limit, limit), bound) for bound in (self.lower, self.upper)
        )
        return self._replace(effect=self.effect._replace(limit=limit), lower=lower, upper=upper)


def harm_of(
    differences: Float64[np.ndarray, "*leading seed item"],
    clusters: Shaped[np.ndarray, "item"] | None = None,
    weights: Float64[np.ndarray, "weight"] | None = None,
    *,
    is_share: bool,
) -> Harm:
    """Return the harm in differences [..., seed, item] for which higher is better; see `paired_effect`.

    `is_share`: all scores lie in [0, 1].
    """
    found = paired_effect(-differences, clusters, weights)
    items = item_shares(weights, differences.shape[-1])
    sums, shares = cluster_sums(-differences.mean(axis=-2) * items, clusters), cluster_sums(items, clusters)
    harms, shares = sums[..., shares > 0.0] / shares[shares > 0.0], shares[shares > 0.0]
    largest: Leading = np.ones(harms.shape[:-1])
    if not is_share:
        differing = np.count_nonzero(harms, axis=-1)
        with np.errstate(invalid="ignore"):
            size = np.sqrt(np.square(harms).sum(axis=-1) / differing)
        largest = np.where(differing > 0, size, np.inf)
    highest, lowest = mean_upper(harms, shares, largest), -mean_upper(-harms, shares, largest)
    upward, downward = (_with_min_half_width(found, abs(bound - found.mean)) for bound in (highest, lowest))
    return Harm(
        effect=upward,
        lower=np.minimum(downward.lower(ONE_SIDED), lowest),
        upper=np.maximum(upward.upper(ONE_SIDED), highest),
        rare_variance=_excess(upward.item_variance, found.item_variance),
    )


def non_inferiority(harm: Harm, *, margin: float) -> GuardrailResult:
    """Test one harm (no leading axes) against its margin."""
    assert margin > 0.0, f"margin {margin} must be above 0"
    error = float(harm.effect.standard_error)
    lower, upper = float(harm.lower), float(harm.upper)
    unclear: GuardrailVerdict = "undecided" if is_sized(error, margin) else "undersized"
    verdict: GuardrailVerdict = "pass" if upper < margin else "fail" if lower > margin else unclear
    return GuardrailResult(
        verdict=verdict,
        harm=float(harm.effect.mean),
        lower=lower,
        upper=upper,
        standard_error=error,
        items_factor=_items_factor(harm, margin),
    )


def is_sized(standard_error: float, margin: float) -> bool:
    """Return whether a guardrail with this standard error passes a harmless candidate 98.7% of the time."""
    # One part in 10^9 allows for rounding if a plan meets the bound exactly.
    return standard_error <= margin / MARGINS_PER_ERROR * (1 + 1e-9)


def pass_probability(
    margin: float, components: VarianceComponents, *, num_seeds: int, num_items: int, is_share: bool
) -> float:
    """Return the probability that a harmless candidate passes."""
    size = _rare_event_size(components, is_share=is_share)
    if margin <= size * float(rate_upper(0.0, float(num_items))):
        return 0.0
    allowed, with_rare = rare_event_allowance(components, num_items=num_items, is_share=is_share)
    return float(power(margin - allowed, with_rare, num_seeds=num_seeds, num_items=num_items))


def rare_event_allowance(
    components: VarianceComponents, *, num_items: int, is_share: bool
) -> tuple[float, VarianceComponents]:
    """Return what the exact bound for rare harm costs, so that its power can be computed like that of a gain: the
    reduction of the margin, and the variance components with one unobserved item.

    Approximates the exact bound of n items with k failures: k + z^2 / 2 + z (k + 1)^(1/2), over n.
    """
    size = _rare_event_size(components, is_share=is_share)
    shorter = size * normal_quantile(2 * ONE_SIDED - 1.0) ** 2 / 2.0 / num_items
    return shorter, components._replace(item=components.item + size**2 / num_items, rare_variance=0.0)


def _rare_event_size(components: VarianceComponents, *, is_share: bool) -> float:
    return 1.0 if is_share else math.sqrt(components.item + components.residual)


def _with_min_half_width(found: Effect, half_width: Leading) -> Effect:
    """Return the effect with an item variance whose interval alone is at least `half_width` wide."""
    least = np.square(half_width / stdtrit(np.maximum(found.item_degrees, 1.0), ONE_SIDED))
    return found._replace(item_variance=np.maximum(found.item_variance, least))


def _excess(larger: Leading, smaller: Leading) -> Leading:
    return np.where(np.isinf(larger), np.inf, larger - np.where(np.isinf(larger), 0.0, smaller))


def _items_factor(harm: Harm, margin: float) -> float:
    effect = harm.effect
    # Item variance falls with the items, that of rare harm with their square; seed variance does not fall.
    if is_sized(float(effect.standard_error), margin):
        return 1.0
    seeds_alone = float(effect.seed_variance - effect.residual_variance)
    slack = (margin / MARGINS_PER_ERROR) ** 2 - max(seeds_alone, 0.0)
    if slack <= 0.0 or not math.isfinite(seeds_alone) or math.isinf(float(effect.item_variance)):
        return math.inf
    rare_variance = float(harm.rare_variance)
    seen = float(effect.item_variance) - rare_variance
    return (seen + math.sqrt(seen**2 + 4.0 * slack * rare_variance)) / (2.0 * slack)
