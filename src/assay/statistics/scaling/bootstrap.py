"""Uncertainty of a law's parameters: the fit is repeated on bootstrap samples of the points.

Points are sampled with replacement in whole groups, because the checkpoints of one run are one piece of evidence;
nothing is assumed about the residuals. Each sample is fitted from the full fit's optimum, hundreds at a time. Intervals
are percentiles, which do not depend on whether A or log A is reported; on the design of Hoffmann's runs 95% intervals
cover 95 to 96% (docs/scaling.md). The standard error of a coefficient is less stable than its interval: the
distribution of B has a long tail, and its standard error differs by 5% between two sets of 4,000 samples.
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
    """Count how often each point occurs in each bootstrap sample; the points of a group are sampled together."""
    numbers, index = np.unique(groups, return_inverse=True)
    counts_by_group = rng.multinomial(len(numbers), np.full(len(numbers), 1.0 / len(numbers)), size=num_resamples)
    counts: np.ndarray = counts_by_group[:, index]
    return counts


def bootstrap(fit: ScalingFit, counts: Int64[np.ndarray, "resample point"]) -> Theta:
    """[sample, parameter]: theta fitted to each bootstrap sample, relative to the fit's center."""
    return minimise(
        fit.features,
        np.log(fit.points.loss),
        counts,
        np.repeat(fit.theta[None], len(counts), axis=0),
        deltas=falling_deltas(fit.delta, first=max(_FIRST_DELTA, fit.delta)),
    )


def resampled(fit: ScalingFit, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> Theta:
    """Return `bootstrap` with samples that are a function of the seed."""
    return bootstrap(fit, resample_counts(fit.points.groups, num_resamples, np.random.default_rng(seed)))


def standard_errors(fit: ScalingFit, replicates: Theta) -> dict[str, float]:
    """Return each parameter's standard deviation over the samples; infinite if one sample is."""
    formula_parameters = fit.form.formula_parameters(replicates, fit.center)
    sizes = np.maximum(np.abs(formula_parameters).max(axis=0), np.finfo(float).tiny)
    # Divided by the largest size first, so that no square overflows.
    with np.errstate(invalid="ignore", over="ignore"):
        standard_deviations = sizes * (formula_parameters / sizes).std(axis=0, ddof=1)
    standard_deviations[np.isnan(standard_deviations)] = np.inf
    return dict(zip(fit.form.parameter_names, standard_deviations.tolist(), strict=True))


def scaling_law(fit: ScalingFit, replicates: Theta, *, seed: int = 0) -> ScalingLaw:
    """Return the record of a fit: each parameter with its standard error and percentile interval."""
    formula_parameters = fit.form.formula_parameters(replicates, fit.center)
    tail = (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):  # between two infinities
        lows, highs = np.quantile(formula_parameters, [tail, 1 - tail], axis=0)
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
