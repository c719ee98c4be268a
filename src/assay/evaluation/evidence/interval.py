"""How sure an interval is, how wide that makes it under a normal law, and symmetric ones as records."""

import math

from assay.records.evaluation import Estimate

CONFIDENCE = 0.95
"""The confidence of every interval that names no other."""

ONE_SIDED = 0.95
"""Confidence of guardrails and safety bounds. All must pass, so they share no error (an intersection-union
test)."""


def normal_quantile(confidence: float = CONFIDENCE) -> float:
    """Half-width of a two-sided interval in standard errors: 1.96 for 0.95."""
    from scipy.special import ndtri  # here, for ranks import this module, too

    return float(ndtri(0.5 + confidence / 2.0))


def symmetric(
    value: float,
    reach: float,
    *,
    method: str,
    confidence: float = CONFIDENCE,
    lowest: float = -math.inf,
    highest: float = math.inf,
) -> Estimate:
    """`value` with an interval that reaches as far on either side, within what is possible."""
    low, high = max(value - reach, lowest), min(value + reach, highest)
    return Estimate(value=value, low=low, high=high, confidence=confidence, method=method)
