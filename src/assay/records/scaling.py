"""A fitted scaling law and what it says about runs that nobody has made yet."""

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from assay.records.evaluation import Estimate
from assay.records.record import Record


class LawParameter(Record):
    """A coefficient or exponent, bootstrapped."""

    name: str
    estimate: Estimate
    standard_error: NonNegativeFloat | None


class ScalingLaw(Record):
    """Loss as a function of scale."""

    form: str
    """`chinchilla`, `over-training`, `compute` or `tokens`."""
    formula: str
    points_sha256: str
    num_points: PositiveInt
    huber_delta: PositiveFloat
    """In log loss."""
    objective: NonNegativeFloat
    """Sum of Huber losses."""
    parameters: tuple[LawParameter, ...]
    num_resamples: PositiveInt
    seed: NonNegativeInt


class ScalingPrediction(Record):
    """A prediction for one larger run."""

    law_sha256: str
    target: dict[str, PositiveFloat]
    loss: Estimate
    times_beyond_data: PositiveFloat
    """Over the largest fitted scale."""
    times_supported: PositiveFloat
    """Largest ratio that the back-test covers."""


class BandCheck(Record):
    """Coverage of the bands on held-out runs."""

    confidence: float
    num_predictions: NonNegativeInt
    covered: float
    """Calibrated band."""
    covered_uncalibrated: float
    """Bootstrap and residuals."""
    covered_by_bootstrap_alone: float
    """Bootstrap."""


class GainForecast(Record):
    """What a candidate's gain over the baseline will be at a larger scale."""

    scale: str
    """`parameters`, `tokens` or `compute` (FLOP)."""
    target: PositiveFloat
    gain: Estimate
    """In the primary benchmarks' unit; for one further pair of runs. Its lower end is an 80% lower bound."""
    sources: tuple[str, ...]
    """Campaigns behind it, this one first."""
    scales: tuple[PositiveFloat, ...]
    """The scale of each."""
    gains: tuple[float, ...]
    """Mean gain of each, over its seeds."""
    times_beyond_data: PositiveFloat
    times_supported: PositiveFloat
    """How far beyond the largest campaign a back-test could check such forecasts."""
