"""How sure the parameters are: the fit repeated on resampled points.

Points are drawn with replacement, whole groups at a time (the checkpoints of one run are one piece of
evidence), so nothing is assumed about the residuals. Each resample starts at the full fit's optimum and is
solved anew, hundreds at a time. Intervals are percentiles: they do not depend on whether A or log A is looked
at, and on the design of Hoffmann's runs 95% ones cover 95 to 96% (docs/scaling.md). The standard error of a
coefficient is less stable than its interval: B's distribution has a long tail, and its standard error moves
by 5% between two sets of 4,000 resamples.
"""

import numpy as np

from assay.base.shapes import Int64
from assay.records.evaluation import Estimate
from assay.records.scaling import LawParameter, ScalingLaw
from assay.statistics.interval import CONFIDENCE
from assay.statistics.scaling.fit import ScalingFit, falling_deltas
from assay.statistics.scaling.solver import Theta, minimise

NUM_RESAMPLES = 1000
_FIRST_DELTA = 1e-2


def resample_counts(
    groups: Int64[np.ndarray, "point"], num_resamples: int, rng: np.random.Generator
) -> Int64[np.ndarray, "resample point"]:
    """As many groups as there are, drawn with replacement; all points of a group are drawn together."""
    numbers, index = np.unique(groups, return_inverse=True)
    counts_by_group = rng.multinomial(
        len(numbers), np.full(len(numbers), 1.0 / len(numbers)), size=num_resamples
    )
    counts: np.ndarray = counts_by_group[:, index]
    return counts


def bootstrap(fit: ScalingFit, counts: Int64[np.ndarray, "resample point"]) -> Theta:
    """[resample, parameter]: theta fitted to each resample, around the fit's own centre."""
    return minimise(
        fit.features,
        np.log(fit.points.loss),
        counts,
        np.repeat(fit.theta[None], len(counts), axis=0),
        deltas=falling_deltas(fit.delta, first=max(_FIRST_DELTA, fit.delta)),
    )


def resampled(fit: ScalingFit, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> Theta:
    """`bootstrap` with resamples that are a function of the seed."""
    return bootstrap(fit, resample_counts(fit.points.groups, num_resamples, np.random.default_rng(seed)))


def standard_errors(fit: ScalingFit, replicates: Theta) -> dict[str, float]:
    """By parameter: the standard deviation over the resamples; infinite where one of them is."""
    natural = fit.form.natural(replicates, fit.centre)
    sizes = np.maximum(np.abs(natural).max(axis=0), np.finfo(float).tiny)
    with np.errstate(
        invalid="ignore", over="ignore"
    ):  # in units of the largest, so that no square is beyond all
        deviations = sizes * (natural / sizes).std(axis=0, ddof=1)
    deviations[np.isnan(deviations)] = np.inf
    return dict(zip(fit.form.parameter_names, deviations.tolist(), strict=True))


def scaling_law(fit: ScalingFit, replicates: Theta, *, seed: int = 0) -> ScalingLaw:
    """The record of a fit: each parameter with its standard error and percentile interval."""
    natural = fit.form.natural(replicates, fit.centre)
    tail = (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):  # between two infinities
        lows, highs = np.quantile(natural, [tail, 1 - tail], axis=0)
    errors = standard_errors(fit, replicates)
    method = f"percentile bootstrap, {len(replicates)} resamples"
    parameters = tuple(
        LawParameter(
            name=name,
            estimate=Estimate(value=value, low=_number(lows[index]), high=_number(highs[index]), method=method),
            standard_error=_number(errors[name]),
        )
        for index, (name, value) in enumerate(fit.parameters().items())
    )
    return ScalingLaw(
        form=fit.form.name,
        formula=fit.form.formula,
        points_sha256=fit.points.sha256(),
        num_points=fit.points.num_points,
        huber_delta=fit.delta,
        objective=fit.objective,
        parameters=parameters,
        num_resamples=len(replicates),
        seed=seed,
    )


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
