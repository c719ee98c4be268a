"""Back-tests of extrapolations: errors of predictions of larger runs whose losses are known.

The points are sorted by scale. At each of several origins, a law is fitted to the points below and predicts the points
above, and each error is divided by the standard error that the fit claims:

    s(x)^2 = (half-width of the bootstrap's middle 68% at x)^2 + (residual scale)^2

The residual scale is the larger of the deviation of all residuals and that of the quarter at the largest scale. s
covers neither a wrong form nor a fit error that all predictions of one fit share. On Hoffmann's runs, 90% bands from s
alone hold 54 to 84% of the points, and bands from the bootstrap alone 8 to 37%. The shortfall grows with the *horizon*
h, the log of the target's scale over the largest fitted scale. The band is therefore

    prediction +- q s(x) sqrt(1 + h)

where q is calibrated so that nearly every origin would have had its share of points inside: for each origin, take the
quantile of |error| / (s sqrt(1 + h)) at the band's level; q is the quantile of these values at the same level, and at
least 0.6 of the normal quantile. Origins are not pooled, because the errors of one origin are correlated. With the full
normal quantile as the minimum, 90% bands held 98 to 99% of simulated laws, both correct and bent
(benchmarks/evidence_scaling.py).

A band beyond `max_horizon`, the longest horizon that the origins had, is untested and marked so. An origin below which
no law can be fitted (for example because all its runs have one size) is left out and named.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from assay.base.errors import DataError
from assay.base.shapes import Float64, Int
from assay.base.units import number_of
from assay.statistics.interval import normal_quantile

NUM_ORIGINS = 8
FIRST_ORIGIN, LAST_ORIGIN = 0.25, 0.9
MIN_ORIGINS = 3
MIN_PREDICTIONS = 3
"""The back-test needs this many predictions at `max_horizon` or beyond."""

MIN_MULTIPLIER = 0.6
"""Minimum of q as a multiple of the normal quantile: a few lucky origins must not narrow the band further."""

MIN_ERROR = 1e-9
"""Smallest standard error that a claim may have: points that lie exactly on a law would claim 0."""


class Claim(NamedTuple):
    """A fit's predictions of points that it has not seen, with the standard errors that it claims."""

    predicted: Float64[np.ndarray, "point"]
    errors: Float64[np.ndarray, "point"]
    """Claimed standard errors, in the unit of the prediction."""
    bootstrap_errors: Float64[np.ndarray, "point"]
    """The part of `errors` that comes from the parameters."""


FitAndClaim = Callable[[Int[np.ndarray, "fitted"], Int[np.ndarray, "predicted"]], Claim]
"""(points to fit, points to predict) -> claim."""


class Origin(NamedTuple):
    """Errors of one fit on the points above its origin."""

    num_fitted: int
    horizon: Float64[np.ndarray, "prediction"]
    """[prediction]: log of its scale over the largest fitted scale."""
    errors: Float64[np.ndarray, "prediction"]
    """[prediction]: observed minus predicted."""
    claimed: Float64[np.ndarray, "prediction"]
    """[prediction]: claimed standard errors."""


class BackTest(NamedTuple):
    """Results of all origins."""

    origins: tuple[Origin, ...]
    max_horizon: float
    """In e-folds of scale."""
    left_out: tuple[str, ...] = ()
    """Reasons why no law could be fitted at some origins."""

    def error(self) -> tuple[float, float]:
        """Return the mean over origins of |error| / sqrt(1 + h), and its standard error."""
        sizes = [np.abs(origin.errors) / np.sqrt(1.0 + np.maximum(origin.horizon, 0.0)) for origin in self.origins]
        means = np.array([size.mean() for size in sizes])
        return float(means.mean()), float(means.std(ddof=1) / np.sqrt(len(means)))

    def multiplier(self, confidence: float) -> float:
        """Return q, the half-width of a two-sided band over s sqrt(1 + h)."""
        scores = [np.abs(origin.errors) / band_scale(origin.claimed, origin.horizon) for origin in self.origins]
        of_origins = [float(np.quantile(score, confidence)) for score in scores]
        return max(float(np.quantile(of_origins, confidence)), MIN_MULTIPLIER * normal_quantile(confidence))

    def half_width(self, claim: Claim, horizon: float, confidence: float) -> float:
        """Return the half-width of the band around the claim's one point at this horizon."""
        return self.multiplier(confidence) * float(band_scale(claim.errors, np.array([horizon]))[0])


def band_scale(
    errors: Float64[np.ndarray, "point"], horizon: Float64[np.ndarray, "point"]
) -> Float64[np.ndarray, "point"]:
    """Return the claimed error, at least `MIN_ERROR`, times sqrt(1 + h); inside the data h is 0."""
    scale: np.ndarray = np.maximum(errors, MIN_ERROR) * np.sqrt(1.0 + np.maximum(horizon, 0.0))
    return scale


def run_back_test(
    scale: Float64[np.ndarray, "point"],
    observed: Float64[np.ndarray, "point"],
    claim: FitAndClaim,
    *,
    min_points: int,
    num_origins: int = NUM_ORIGINS,
) -> BackTest:
    """Fit and predict `observed` at each origin of `scale`. Raises `DataError` if there are too few points."""
    order = np.argsort(scale, kind="stable")
    origins, left_out = [], []
    for num_fitted in _origin_sizes(scale[order], min_points, num_origins):
        below, above = order[:num_fitted], order[num_fitted:]
        try:
            claimed = claim(below, above)
        except DataError as error:
            left_out.append(f"the {num_fitted} smallest points: {error}")
            continue
        origins.append(
            Origin(
                num_fitted,
                np.log(scale[above] / scale[below].max()),
                observed[above] - claimed.predicted,
                claimed.errors,
            )
        )
    if len(origins) < MIN_ORIGINS:
        raise DataError(
            f"only {number_of(len(origins), 'origin')} could be fitted for the back-test of the extrapolation; "
            f"it needs {MIN_ORIGINS}. Left out: {'; '.join(left_out)}"
        )
    horizon = np.sort(np.concatenate([origin.horizon for origin in origins]))
    return BackTest(tuple(origins), float(horizon[-MIN_PREDICTIONS]), tuple(left_out))


def residual_scale(
    residuals: Float64[np.ndarray, "point"], scale: Float64[np.ndarray, "point"], *, num_parameters: int
) -> float:
    """Return the deviation that a law leaves unexplained: that of all points, or of the quarter at the largest
    scale."""
    largest = np.argsort(scale, kind="stable")[-max(len(residuals) // 4, 8) :]
    return max(_robust_deviation(residuals, num_parameters), _robust_deviation(residuals[largest], num_parameters // 4))


def half_width_68(replicates: Float64[np.ndarray, "resample point"]) -> Float64[np.ndarray, "point"]:
    """[point]: half the width of the middle 68% of the bootstrap replicates, a standard deviation without long
    tails."""
    low, high = np.quantile(replicates, [0.16, 0.84], axis=0)
    width: np.ndarray = (high - low) / 2.0
    return width


def _robust_deviation(residuals: Float64[np.ndarray, "point"], num_fitted: int) -> float:
    """Return the standard deviation of the residuals, with those beyond four median deviations clipped.

    A fit of least absolute deviations passes through as many points as it has parameters. Those residuals are zero
    whatever the noise is, and are left out (as in Rousseeuw & Leroy 1987).
    """
    sizes = np.sort(np.abs(residuals))[num_fitted:]
    median = 1.4826 * float(np.median(sizes))
    within = np.minimum(sizes, 4.0 * median)
    return max(median, float(np.sqrt((within @ within) / len(sizes))))


def _origin_sizes(scale: Float64[np.ndarray, "point"], min_points: int, num_origins: int) -> Sequence[int]:
    """Return how many points each origin fits; an origin never separates points of one scale."""
    num_points = len(scale)
    first, last = max(min_points, int(FIRST_ORIGIN * num_points)), int(LAST_ORIGIN * num_points)
    target_sizes = np.linspace(first, max(first, last), num_origins).astype(int)
    # Points with the scale of the last fitted point are fitted, too.
    sizes = np.unique(np.searchsorted(scale, scale[np.minimum(target_sizes, num_points) - 1], side="right"))
    usable = [int(size) for size in sizes if min_points <= size < num_points]
    if len(usable) < MIN_ORIGINS or num_points - usable[0] < MIN_PREDICTIONS:
        raise DataError(
            f"{num_points} points are too few to test an extrapolation on: each back-test needs {min_points} "
            f"below its origin and some above, at {MIN_ORIGINS} origins or more. Add runs at "
            f"{min_points + 4} different scales or more, or choose a form with fewer parameters."
        )
    return usable
