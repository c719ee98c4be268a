"""A fitted scaling law and what it says about runs that nobody has made yet."""

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from assay.records.evaluation import Estimate
from assay.records.record import Record


class LawParameter(Record):
    """One coefficient or exponent, with its bootstrap standard error and interval."""

    name: str
    estimate: Estimate
    """An end is None where resamples put it beyond any number."""
    standard_error: NonNegativeFloat | None
    """Likewise."""


class ScalingLaw(Record):
    """Loss as a function of scale, fitted to finished runs."""

    form: str
    """`chinchilla`, `over-training`, `compute` or `tokens`."""
    formula: str
    points_sha256: str
    """SHA-256 of the points that were fitted, as canonical JSON: the input by digest."""
    num_points: PositiveInt
    huber_delta: PositiveFloat
    """Residuals of log loss below this count by their square, larger ones by their size."""
    objective: NonNegativeFloat
    """Sum over points of the Huber loss of the residual in log loss."""
    parameters: tuple[LawParameter, ...]
    num_resamples: PositiveInt
    seed: NonNegativeInt


class ScalingPrediction(Record):
    """What the law expects of one larger run."""

    law_sha256: str
    target: dict[str, PositiveFloat]
    """By name: `parameters`, `tokens`, `compute` (FLOP), as far as the law's form uses them."""
    loss: Estimate
    """In the points' own unit. The band is for one new run, calibrated by back-test."""
    times_beyond_data: PositiveFloat
    """The target's scale over the largest that was fitted; at most 1 inside the data."""
    times_supported: PositiveFloat
    """How far beyond the data a back-test could check such predictions."""


class BandCheck(Record):
    """How often the bands held what came, where what came is known: fits on small runs against larger ones."""

    confidence: float
    num_predictions: NonNegativeInt
    covered: float
    """Share of held-out larger runs inside the calibrated band."""
    covered_uncalibrated: float
    """The same for the band of bootstrap and residuals alone."""
    covered_by_bootstrap_alone: float
    """The same for the plain bootstrap band of the fitted curve."""


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
