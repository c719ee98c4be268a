"""How wrong predictions of larger runs were, where the larger runs are known.

Sort the points by scale and put the origin at several places: fit what lies below, predict what lies above,
and compare each error with the standard error that the fit claimed for it. A claim is

    s(x)^2 = (half-width of the bootstrap's middle 68% at x)^2 + (residual scale)^2

where the residual scale is the larger of that of all residuals and that of the quarter at the largest scale.
It counts neither a wrong form nor a fit error that all predictions of one fit share, so bands of s alone hold
54 to 84% of what a 90% band should on Hoffmann's runs, and those of the bootstrap alone 8 to 37%. What is
missing grows with the *reach* h, the log of the target's scale over the largest that was fitted. So the band
is

    prediction +- q s(x) sqrt(1 + h)

and q is such that nearly every origin would have had its share inside: of the origins' own quantiles of
|error| / (s sqrt(1 + h)) it is the quantile of the same level, and never below 0.6 of the normal's. Errors of
one origin rise and fall together, so pooling them all would take one lucky origin for a hundred witnesses. The
widening by h does the rest: with the normal quantile itself as the least q, 90% bands held 98 to 99% of what
simulated laws said, right ones and bent ones (benchmarks/evidence_scaling.py).

Nothing is known about reaches that no origin had: beyond `longest_reach` a band is untested, and said to be. An
origin below which no law can be fitted (all its runs are of one size) is left out, and named.
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
"""Share of the points below the first and the last origin."""
MIN_ORIGINS = 3
MIN_PREDICTIONS = 3
"""The longest supported reach is one that so many predictions of a back-test had, at least."""

MIN_MULTIPLIER = 0.6
"""The least multiple of the normal quantile: what few origins, all of them lucky, cannot go below."""

MIN_ERROR = 1e-9
"""Log loss, or share, below which no claim is believed: points that lie on a law exactly claim 0."""


class Claim(NamedTuple):
    """What a fit says about some points that it has not seen."""

    predicted: Float64[np.ndarray, "point"]
    errors: Float64[np.ndarray, "point"]
    """Claimed standard errors, in the prediction's own unit."""
    bootstrap_errors: Float64[np.ndarray, "point"]
    """The part of them that comes from the parameters."""


FitAndClaim = Callable[[Int[np.ndarray, "fitted"], Int[np.ndarray, "predicted"]], Claim]
"""(points to fit, points to predict) -> claim."""


class Origin(NamedTuple):
    """A fit on what lies below, against what came."""

    num_fitted: int
    horizons: Float64[np.ndarray, "prediction"]
    """[prediction]: log of its scale over the largest that was fitted."""
    errors: Float64[np.ndarray, "prediction"]
    """[prediction]: observed minus predicted."""
    claimed: Float64[np.ndarray, "prediction"]
    """[prediction]: claimed standard errors."""


class BackTest(NamedTuple):
    """What all origins say together."""

    origins: tuple[Origin, ...]
    max_horizon: float
    """In e-folds of scale."""
    left_out: tuple[str, ...] = ()
    """Why no law could be fitted to some origins."""

    def error(self) -> tuple[float, float]:
        """Mean |error| / sqrt(1 + h) of an origin's predictions, over origins, and its standard error."""
        sizes = [
            np.abs(origin.errors) / np.sqrt(1.0 + np.maximum(origin.horizons, 0.0)) for origin in self.origins
        ]
        means = np.array([size.mean() for size in sizes])
        return float(means.mean()), float(means.std(ddof=1) / np.sqrt(len(means)))

    def multiplier(self, confidence: float) -> float:
        """q: half-width of a two-sided band over s sqrt(1 + h)."""
        scores = [
            np.abs(origin.errors) / band_scale(origin.claimed, origin.horizons) for origin in self.origins
        ]
        of_origins = [float(np.quantile(score, confidence)) for score in scores]
        return max(float(np.quantile(of_origins, confidence)), MIN_MULTIPLIER * normal_quantile(confidence))

    def half_width(self, claim: Claim, horizon: float, confidence: float) -> float:
        """The half-width of the band around the one point that is claimed, at this reach."""
        return self.multiplier(confidence) * float(band_scale(claim.errors, np.array([horizon]))[0])


def band_scale(
    errors: Float64[np.ndarray, "point"], horizons: Float64[np.ndarray, "point"]
) -> Float64[np.ndarray, "point"]:
    """The claimed error, at least `LEAST_ERROR`, times sqrt(1 + h); inside the data h is 0."""
    scale: np.ndarray = np.maximum(errors, MIN_ERROR) * np.sqrt(1.0 + np.maximum(horizons, 0.0))
    return scale


def run_back_test(
    scale: Float64[np.ndarray, "point"],
    observed: Float64[np.ndarray, "point"],
    claim: FitAndClaim,
    *,
    min_points: int,
    num_origins: int = NUM_ORIGINS,
) -> BackTest:
    """Replay the history of `observed` by `scale`. Raises `DataError` where there are too few points for it."""
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
            f"an extrapolation can be tested from {number_of(len(origins), 'origin')} only, and "
            f"{MIN_ORIGINS} are needed. Left out: {'; '.join(left_out)}"
        )
    horizons = np.sort(np.concatenate([origin.horizons for origin in origins]))
    return BackTest(tuple(origins), float(horizons[-MIN_PREDICTIONS]), tuple(left_out))


def residual_scale(
    residuals: Float64[np.ndarray, "point"], scale: Float64[np.ndarray, "point"], *, num_parameters: int
) -> float:
    """Deviation that a law leaves unexplained: over all points, or the quarter of largest scale if more."""
    largest = np.argsort(scale, kind="stable")[-max(len(residuals) // 4, 8) :]
    return max(
        _robust_deviation(residuals, num_parameters),
        _robust_deviation(residuals[largest], num_parameters // 4),
    )


def half_width_68(replicates: Float64[np.ndarray, "resample point"]) -> Float64[np.ndarray, "point"]:
    """[point]: half the width of the middle 68% over resamples; a standard deviation without its long tails."""
    low, high = np.quantile(replicates, [0.16, 0.84], axis=0)
    width: np.ndarray = (high - low) / 2.0
    return width


def _robust_deviation(residuals: Float64[np.ndarray, "point"], num_fitted: int) -> float:
    """The standard deviation of the residuals, with those beyond four median deviations brought in to that.

    A fit of least absolute deviations goes through as many points as it has parameters; those residuals are
    zero whatever the noise is, and are not looked at (as in Rousseeuw & Leroy 1987).
    """
    sizes = np.sort(np.abs(residuals))[num_fitted:]
    median = 1.4826 * float(np.median(sizes))
    within = np.minimum(sizes, 4.0 * median)
    return max(median, float(np.sqrt((within @ within) / len(sizes))))


def _origin_sizes(scale: Float64[np.ndarray, "point"], min_points: int, num_origins: int) -> Sequence[int]:
    """How many points each fit gets; an origin never parts points of one scale."""
    num_points = len(scale)
    first, last = max(min_points, int(FIRST_ORIGIN * num_points)), int(LAST_ORIGIN * num_points)
    target_sizes = np.linspace(first, max(first, last), num_origins).astype(int)
    # To the right of all points that share the scale of the last that is fitted.
    sizes = np.unique(np.searchsorted(scale, scale[np.minimum(target_sizes, num_points) - 1], side="right"))
    usable = [int(size) for size in sizes if min_points <= size < num_points]
    if len(usable) < MIN_ORIGINS or num_points - usable[0] < MIN_PREDICTIONS:
        raise DataError(
            f"{num_points} points are too few to test an extrapolation on: each back-test needs {min_points} "
            f"below its origin and some above, at {MIN_ORIGINS} origins or more. Add runs at "
            f"{min_points + 4} different scales or more, or choose a form with fewer parameters."
        )
    return usable
