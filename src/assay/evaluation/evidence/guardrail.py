"""Is the candidate not worse where it must not be worse? Non-inferiority, and what is lacking where it is open.

A guardrail passes when the upper bound of the harm is below its margin, fails when even the lower bound is
above, and is undecided between. The bounds hold with whatever power: a wide interval that clears the margin all
the same errs as seldom as a narrow one. All guardrails must pass, so their errors need no correction (an
intersection-union test), but their powers multiply: four guardrails, each with a standard error of 0.4 of its
margin, pass a harmless candidate four times in ten. With SE <= margin / 3.9 each passes 98.7% of the time. One
that is undecided with a larger error is *undersized*, and its verdict names the items that it lacks.
"""

import math
from typing import Literal, NamedTuple

from assay.evaluation.evidence.effect import Effect
from assay.evaluation.evidence.interval import ONE_SIDED

MARGINS_PER_ERROR = 3.9
"""A guardrail's margin in standard errors, at least: z(.95) + z(.987)."""

GuardrailVerdict = Literal["pass", "fail", "undecided", "undersized"]


class GuardrailResult(NamedTuple):
    """One guardrail's harm (above 0 is worse) beside its margin, in the score's unit."""

    verdict: GuardrailVerdict
    harm: float
    lower: float
    upper: float
    """One-sided bounds."""
    standard_error: float
    items_factor: float
    """By how much to multiply the items for the wanted standard error; 1 where sized, infinite where seeds
    alone exceed it."""


def harm_of(effect: Effect) -> Effect:
    """An effect of which higher is better, turned so that above 0 is worse."""
    return effect._replace(mean=-effect.mean)


def non_inferiority(harm: Effect, *, margin: float, must_be_sized: bool = False) -> GuardrailResult:
    """Judge one harm (see `harm_of`; no leading axes) against its margin.

    `must_be_sized`: as campaigns declared it once, an undersized guardrail neither passes nor fails.
    """
    assert margin > 0.0, f"margin {margin}: how much worse is allowed must be above 0"
    error = float(harm.standard_error)
    lower, upper = float(harm.lower(ONE_SIDED)), float(harm.upper(ONE_SIDED))
    verdict: GuardrailVerdict = "undecided" if is_sized(error, margin) else "undersized"
    if verdict == "undecided" or not must_be_sized:
        verdict = "pass" if upper < margin else "fail" if lower > margin else verdict
    return GuardrailResult(
        verdict=verdict,
        harm=float(harm.mean),
        lower=lower,
        upper=upper,
        standard_error=error,
        items_factor=_items_factor(harm, margin),
    )


def is_sized(standard_error: float, margin: float) -> bool:
    """Whether a guardrail with this standard error passes what does no harm, nearly always."""
    # One part in 10^9 forgives rounding where a plan meets the bound exactly.
    return standard_error <= margin / MARGINS_PER_ERROR * (1 + 1e-9)


def _items_factor(harm: Effect, margin: float) -> float:
    """Item variance shrinks with the items, seed variance does not."""
    if is_sized(float(harm.standard_error), margin):
        return 1.0
    seeds_alone = float(harm.seed_variance - harm.residual_variance)
    room = (margin / MARGINS_PER_ERROR) ** 2 - max(seeds_alone, 0.0)
    return float(harm.item_variance) / room if room > 0.0 and math.isfinite(seeds_alone) else math.inf
