"""Forecast a candidate's gain at a larger scale: a line over log scale, calibrated by a back-test.

A gain may be 0 or negative, so it has no law of the loss (`forms`); the difference of two laws would lose the pairing.
Over the range of one ladder of scales, a line is as much as a few scales support:

    gain = a + b log(scale / middle) + noise

The band is for one further pair of runs at the target and includes the scatter of pairs. Its width is calibrated as for
every law (`backtest`). It needs at least five scales.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from assay.base.errors import DataError
from assay.base.shapes import Float64, Int
from assay.base.units import power_text
from assay.records.scaling import GainForecast
from assay.statistics.interval import symmetric
from assay.statistics.scaling.backtest import BackTest, Claim, run_back_test

CONFIDENCE = 0.60
"""Two-sided, so that the lower end is an 80% lower bound."""
MIN_SCALES = 5


class GainsAtScale(NamedTuple):
    """The gains of the pairs of runs at one scale."""

    source: str
    """Name of the campaign."""
    scale: float
    gains: Sequence[float]


def forecast_gain(rungs: Sequence[GainsAtScale], *, scale_name: str, target: float) -> GainForecast:
    """Return the gain at `target` with its calibrated band. Raises `DataError` if the rungs do not support the
    target."""
    scales = np.concatenate([np.full(len(group.gains), group.scale) for group in rungs])
    gains = np.concatenate([np.asarray(group.gains, dtype=np.float64) for group in rungs])
    order = np.argsort(scales, kind="stable")
    scales, gains = scales[order], gains[order]
    num_scales = np.unique(scales).size
    if num_scales < MIN_SCALES:
        raise DataError(
            f"{num_scales} scales are too few to test an extrapolation of the gain; it needs {MIN_SCALES}. "
            "Add campaigns at other scales."
        )
    back_test = _back_test(scales, gains)
    horizon = _supported_horizon(scales, back_test, target, scale_name)
    claimed = _claim(scales, gains, np.array([target]))
    return GainForecast(
        scale=scale_name,
        target=target,
        gain=symmetric(
            float(claimed.predicted[0]),
            back_test.half_width(claimed, horizon, CONFIDENCE),
            confidence=CONFIDENCE,
            method=f"line over log {scale_name}, back-test at {len(back_test.origins)} origins: "
            f"{back_test.multiplier(CONFIDENCE):.2f} s sqrt(1 + h)",
        ),
        sources=tuple(group.source for group in rungs),
        scales=tuple(group.scale for group in rungs),
        gains=tuple(float(np.mean(group.gains)) for group in rungs),
        times_beyond_data=float(np.exp(horizon)),
        times_supported=float(np.exp(back_test.max_horizon)),
    )


def _back_test(scales: Float64[np.ndarray, "pair"], gains: Float64[np.ndarray, "pair"]) -> BackTest:
    # A line needs two whole scales below the first origin.
    min_points = int(np.searchsorted(scales, np.unique(scales)[1], side="right"))

    def claim(below: Int[np.ndarray, "below"], above: Int[np.ndarray, "above"]) -> Claim:
        return _claim(scales[below], gains[below], scales[above])

    return run_back_test(scales, gains, claim, min_points=max(min_points, 3))


def _claim(
    scales: Float64[np.ndarray, "pair"], gains: Float64[np.ndarray, "pair"], targets: Float64[np.ndarray, "target"]
) -> Claim:
    """Fit the least-squares line; the standard error is that of one further pair's gain."""
    middle = np.log(scales).mean()
    centered, target_offsets = np.log(scales) - middle, np.log(targets) - middle
    sum_of_squares = float(centered @ centered)
    slope = float(centered @ gains) / sum_of_squares
    residuals = gains - gains.mean() - slope * centered
    variance = float(residuals @ residuals) / (len(gains) - 2)
    of_line = variance * (1.0 / len(gains) + target_offsets**2 / sum_of_squares)
    return Claim(gains.mean() + slope * target_offsets, np.sqrt(variance + of_line), np.sqrt(of_line))


def _supported_horizon(scales: Float64[np.ndarray, "pair"], back_test: BackTest, target: float, name: str) -> float:
    largest = float(scales.max())
    horizon = float(np.log(target / largest))
    if horizon > back_test.max_horizon:
        supported = float(np.exp(back_test.max_horizon))
        raise DataError(
            f"{name} {power_text(target)} is {power_text(target / largest)} times the largest campaign; its "
            f"history supports {power_text(supported)} times. Add a campaign at "
            f"{power_text(target / supported)} or more."
        )
    return max(horizon, 0.0)
