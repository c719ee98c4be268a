"""How sure an interval is, and how wide that makes it under a normal law."""

from scipy.stats import norm

CONFIDENCE = 0.95
"""Of every interval that names no other."""


def normal_quantile(confidence: float) -> float:
    """Half-width of a two-sided interval in standard errors: 1.96 for 0.95."""
    return float(norm.ppf(0.5 + confidence / 2.0))
