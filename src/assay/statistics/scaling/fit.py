"""One law fitted to points: from many starts, by Huber's loss of the residual in log loss.

Hoffmann et al. 2022 take delta = 1e-3. Their published numbers are not that objective's optimum: L-BFGS
stopped early on the mean loss. Epoch AI's refit (Besiroglu et al. 2024) is what this module finds, and its
headline numbers are the limit of small delta, least absolute deviations, which `LEAST_ABSOLUTE_DELTA` gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from assay.base.errors import DataError
from assay.base.shapes import Float64
from assay.statistics.scaling.forms import FORMS, ScalingForm
from assay.statistics.scaling.points import ScalingPoints, Variables
from assay.statistics.scaling.solver import (
    Features,
    PerFit,
    Theta,
    log_sum_exp,
    minimise,
    objectives,
)

HUBER_DELTA = 1e-3
LEAST_ABSOLUTE_DELTA = 1e-7
"""So small that only the points which the curve goes through have smaller residuals."""
NUM_STARTS = 64
_FIRST_DELTA = 0.1
_CHINCHILLA = FORMS["chinchilla"]


@dataclass(frozen=True)
class ScalingFit:
    """The best of all starts."""

    form: ScalingForm
    points: ScalingPoints
    delta: float
    centre: Mapping[str, float]
    theta: Float64[np.ndarray, "parameter"]
    """[parameter], around `centre`."""
    objective: float
    """Sum of Huber losses."""

    @property
    def features(self) -> Features:
        """The features of the fitted points."""
        return self.form.features(self.points.variables, self.centre)

    def parameters(self) -> dict[str, float]:
        """By the formula's names."""
        natural = self.form.natural(self.theta[None], self.centre)[0]
        return dict(zip(self.form.parameter_names, natural.tolist(), strict=True))

    def residuals(self) -> Float64[np.ndarray, "point"]:
        """[point]: log loss minus the law's."""
        residuals: np.ndarray = np.log(self.points.loss) - self.log_loss(self.points.variables)
        return residuals

    def log_loss(self, variables: Variables) -> Float64[np.ndarray, "point"]:
        """[point]: the law's log loss at other points."""
        only: np.ndarray = self.log_losses(variables, self.theta[None])[0]
        return only

    def log_losses(self, variables: Variables, theta: Theta) -> PerFit:
        """[fit, point]: the same for many thetas, e.g. of a bootstrap."""
        return log_sum_exp(self.form.features(variables, self.centre), theta)


def fit_scaling_law(
    points: ScalingPoints,
    form: ScalingForm = _CHINCHILLA,
    *,
    delta: float = HUBER_DELTA,
    num_starts: int = NUM_STARTS,
    seed: int = 0,
) -> ScalingFit:
    """The law with the lowest objective over `num_starts` random starts; a function of the points and the seed.

    Raises `DataError` where the points cannot tell the parameters apart.
    """
    form.check(points)
    centre = form.centre(points)
    features, targets = form.features(points.variables, centre), np.log(points.loss)
    starts = _starts(form, targets, num_starts, np.random.default_rng(seed))
    ones = np.ones(points.num_points)
    theta = minimise(features, targets, ones, starts, deltas=falling_deltas(delta))
    reached = objectives(features, targets, ones, theta, delta)
    best = int(np.nanargmin(np.where(np.isfinite(reached), reached, np.inf)))
    fit = ScalingFit(form, points, delta, centre, theta[best], float(reached[best]))
    if runaway := [name for name, value in fit.parameters().items() if not np.isfinite(value)]:
        raise DataError(
            f"{runaway[0]} of '{form.name}' ({form.formula}) is beyond any number: the loss does not fall by a "
            "power. Leave out the runs of highest loss, or choose another form."
        )
    return fit


def falling_deltas(last: float, *, first: float = _FIRST_DELTA) -> tuple[float, ...]:
    """About half a decade apart, ending with `last`."""
    steps = max(1, round(2 * np.log10(first / last)))
    return tuple(float(delta) for delta in np.geomspace(max(first, last), last, steps + 1))


def _starts(
    form: ScalingForm, targets: Float64[np.ndarray, "point"], count: int, rng: np.random.Generator
) -> Float64[np.ndarray, "start parameter"]:
    """At the centre of the points each term is between 0.5% and all of the loss; exponents up to 1.2."""
    num_terms = len(form.terms)
    coefficients = targets.mean() + rng.uniform(np.log(0.005), 0.0, (count, num_terms))
    exponents = rng.uniform(0.02, 1.2, (count, len(form.parameter_names) - num_terms))
    return np.concatenate([coefficients, exponents], axis=1)
