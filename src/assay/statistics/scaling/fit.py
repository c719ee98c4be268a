"""Fit one law to points from many random starts, by Huber's loss of the residuals in log loss.

Hoffmann et al. 2022 use delta = 1e-3. Their published numbers are not the optimum of that objective: L-BFGS stopped
early on the mean loss. This module finds Epoch AI's refit (Besiroglu et al. 2024), whose headline numbers are the limit
of small delta, least absolute deviations (`LEAST_ABSOLUTE_DELTA`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from assay.base.errors import DataError
from assay.base.shapes import Float64
from assay.statistics.scaling.forms import FORMS, ScalingForm
from assay.statistics.scaling.points import ScalingPoints, Variables
from assay.statistics.scaling.solver import Features, PerFit, Theta, log_sum_exp, minimise, objectives

HUBER_DELTA = 1e-3
LEAST_ABSOLUTE_DELTA = 1e-7
"""Small enough that only points on the curve have smaller residuals."""
NUM_STARTS = 64
_FIRST_DELTA = 0.1
_CHINCHILLA = FORMS["chinchilla"]


@dataclass(frozen=True)
class ScalingFit:
    """The fit with the lowest objective over all starts."""

    form: ScalingForm
    points: ScalingPoints
    delta: float
    center: Mapping[str, float]
    theta: Float64[np.ndarray, "parameter"]
    """[parameter], relative to `center`."""
    objective: float
    """Sum of Huber losses."""

    @property
    def features(self) -> Features:
        return self.form.features(self.points.variables, self.center)

    def parameters(self) -> dict[str, float]:
        """Return the parameters by their names in the formula."""
        formula_parameters = self.form.formula_parameters(self.theta[None], self.center)[0]
        return dict(zip(self.form.parameter_names, formula_parameters.tolist(), strict=True))

    def residuals(self) -> Float64[np.ndarray, "point"]:
        """[point]: observed minus fitted log loss."""
        residuals: np.ndarray = np.log(self.points.loss) - self.log_loss(self.points.variables)
        return residuals

    def log_loss(self, variables: Variables) -> Float64[np.ndarray, "point"]:
        """[point]: the law's log loss at other points."""
        only: np.ndarray = self.log_losses(variables, self.theta[None])[0]
        return only

    def log_losses(self, variables: Variables, theta: Theta) -> PerFit:
        """[fit, point]: the same for many thetas, e.g. of a bootstrap."""
        return log_sum_exp(self.form.features(variables, self.center), theta)


def fit_scaling_law(
    points: ScalingPoints,
    form: ScalingForm = _CHINCHILLA,
    *,
    delta: float = HUBER_DELTA,
    num_starts: int = NUM_STARTS,
    seed: int = 0,
) -> ScalingFit:
    """Return the fit with the lowest objective over `num_starts` random starts; a function of the points and the seed.

    Raises `DataError` if the points do not determine the parameters.
    """
    form.check(points)
    center = form.center(points)
    features, targets = form.features(points.variables, center), np.log(points.loss)
    starts = _starts(form, targets, num_starts, np.random.default_rng(seed))
    ones = np.ones(points.num_points)
    theta = minimise(features, targets, ones, starts, deltas=falling_deltas(delta))
    reached = objectives(features, targets, ones, theta, delta)
    best = int(np.nanargmin(np.where(np.isfinite(reached), reached, np.inf)))
    fit = ScalingFit(form, points, delta, center, theta[best], float(reached[best]))
    if runaway := [name for name, value in fit.parameters().items() if not np.isfinite(value)]:
        raise DataError(
            f"{runaway[0]} of '{form.name}' ({form.formula}) diverges: the loss does not fall by a power law. "
            "Leave out the runs with the highest loss, or choose another form."
        )
    return fit


def falling_deltas(last: float, *, first: float = _FIRST_DELTA) -> tuple[float, ...]:
    """Return deltas about half a decade apart that end with `last`."""
    steps = max(1, round(2 * np.log10(first / last)))
    return tuple(float(delta) for delta in np.geomspace(max(first, last), last, steps + 1))


def _starts(
    form: ScalingForm, targets: Float64[np.ndarray, "point"], count: int, rng: np.random.Generator
) -> Float64[np.ndarray, "start parameter"]:
    """Sample starts: at the center of the points each term is 0.5% to 100% of the loss; exponents are at most 1.2."""
    num_terms = len(form.terms)
    coefficients = targets.mean() + rng.uniform(np.log(0.005), 0.0, (count, num_terms))
    exponents = rng.uniform(0.02, 1.2, (count, len(form.parameter_names) - num_terms))
    return np.concatenate([coefficients, exponents], axis=1)
