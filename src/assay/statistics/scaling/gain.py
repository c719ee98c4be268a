"""What a candidate's gain will be at a larger scale: a line over log scale, calibrated by its own history.

A gain may be 0 or below, so it is no law of the loss (`forms`), and two laws subtracted would throw the pairing
away. Over the range of scales of one ladder

    gain = a + b log(scale / middle) + luck

is as much as a few scales can support. The band is for one further pair of runs at the target, with the pairs'
own scatter in it; how wide it must be is found as for every law here (`backtest`): fit the smaller scales,
predict the larger ones, take the multiplier that would have held. Fewer than five scales are refused.
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
    """One scale of a ladder: the gain of each pair of runs there."""

    source: str
    """The campaign's name."""
    scale: float
    gains: Sequence[float]


def forecast_gain(rungs: Sequence[GainsAtScale], *, scale_name: str, target: float) -> GainForecast:
    """The gain at `target` with its calibrated band. Raises `DataError` where the rungs do not support it."""
    scales = np.concatenate([np.full(len(rung.gains), rung.scale) for rung in rungs])
    gains = np.concatenate([np.asarray(rung.gains, dtype=np.float64) for rung in rungs])
    order = np.argsort(scales, kind="stable")
    scales, gains = scales[order], gains[order]
    num_scales = np.unique(scales).size
    if num_scales < MIN_SCALES:
        raise DataError(
            f"{num_scales} scales are too few to test an extrapolation of the gain on; it needs "
            f"{MIN_SCALES}. Add campaigns at other scales."
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
        sources=tuple(rung.source for rung in rungs),
        scales=tuple(rung.scale for rung in rungs),
        gains=tuple(float(np.mean(rung.gains)) for rung in rungs),
        times_beyond_data=float(np.exp(horizon)),
        times_supported=float(np.exp(back_test.max_horizon)),
    )


def _back_test(scales: Float64[np.ndarray, "pair"], gains: Float64[np.ndarray, "pair"]) -> BackTest:
    # Two whole scales below the first origin: a line needs them.
    min_points = int(np.searchsorted(scales, np.unique(scales)[1], side="right"))

    def claim(below: Int[np.ndarray, "below"], above: Int[np.ndarray, "above"]) -> Claim:
        return _claim(scales[below], gains[below], scales[above])

    return run_back_test(scales, gains, claim, min_points=max(min_points, 3))


def _claim(
    scales: Float64[np.ndarray, "pair"],
    gains: Float64[np.ndarray, "pair"],
    targets: Float64[np.ndarray, "target"],
) -> Claim:
    """The least-squares line, with the standard error of one further pair's gain."""
    middle = np.log(scales).mean()
    centered, target_offsets = np.log(scales) - middle, np.log(targets) - middle
    sum_of_squares = float(centered @ centered)
    slope = float(centered @ gains) / sum_of_squares
    residuals = gains - gains.mean() - slope * centered
    variance = float(residuals @ residuals) / (len(gains) - 2)
    of_line = variance * (1.0 / len(gains) + target_offsets**2 / sum_of_squares)
    return Claim(gains.mean() + slope * target_offsets, np.sqrt(variance + of_line), np.sqrt(of_line))


def _supported_horizon(
    scales: Float64[np.ndarray, "pair"], back_test: BackTest, target: float, name: str
) -> float:
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
