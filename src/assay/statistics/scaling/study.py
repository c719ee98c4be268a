"""Everything a law says about some points, in one value: the fit, its record, its back-test and its predictions.

If a part fails (a target too far away, too few points for a back-test), the study keeps the error and returns the rest:
one rejected target does not cost the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.base.errors import AssayError, DataError
from assay.base.shapes import Float64
from assay.records.evaluation import Estimate
from assay.records.scaling import ScalingLaw, ScalingPrediction
from assay.statistics.scaling.backtest import BackTest, band_scale
from assay.statistics.scaling.bootstrap import NUM_RESAMPLES, resampled, scaling_law
from assay.statistics.scaling.downstream import Task, TaskFit, back_test_task, extrapolate_task, fit_task
from assay.statistics.scaling.extrapolate import (
    CONFIDENCE,
    back_test_law,
    choose_form,
    claim_of,
    extrapolate,
)
from assay.statistics.scaling.fit import HUBER_DELTA, ScalingFit, fit_scaling_law
from assay.statistics.scaling.forms import ScalingForm
from assay.statistics.scaling.points import FLOP_PER_PARAMETER_AND_TOKEN, ScalingPoints, Variables
from assay.statistics.scaling.solver import Theta


@dataclass(frozen=True)
class ExtrapolatedTarget:
    """A target with its prediction, or the error why there is none (or none of the score)."""

    target: Mapping[str, float]
    prediction: ScalingPrediction | None = None
    score: Estimate | None = None
    """Estimate of the downstream task, if one was fitted."""
    error: AssayError | None = None

    @property
    def is_untested(self) -> bool:
        """Whether the target lies beyond the back-test's horizon."""
        found = self.prediction
        return found is not None and found.times_beyond_data > found.times_supported


@dataclass(frozen=True)
class ScalingStudy:
    """A law with its back-test and predictions."""

    fit: ScalingFit
    replicates: Theta
    law: ScalingLaw
    back_test: BackTest | None
    """None if there are too few points; every target then has `back_test_error`."""
    back_test_error: AssayError | None
    errors: Mapping[str, float]
    """Form -> mean error of its back-test, by which the form was chosen; empty if the form was given."""
    task: TaskFit | None
    targets: Sequence[ExtrapolatedTarget]
    confidence: float

    def compute_optimal(self, compute: Float64[np.ndarray, "budget"]) -> dict[str, Float64[np.ndarray, "budget"]]:
        """Return the law's optimal parameters and tokens for each amount of compute (FLOP).

        They minimise A/N^alpha + B/D^beta under C = 6 N D (Hoffmann et al. 2022, eq. 4).
        """
        law = self.fit.parameters()
        alpha, beta = law["alpha"], law.get("beta", law["alpha"])
        budget = compute / FLOP_PER_PARAMETER_AND_TOKEN
        parameters = (alpha * law["A"] / (beta * law["B"])) ** (1 / (alpha + beta)) * budget ** (beta / (alpha + beta))
        return {"parameters": parameters, "tokens": budget / parameters, "compute": compute}

    def band(self, variables: Variables) -> tuple[Float64[np.ndarray, "point"], Float64[np.ndarray, "point"]]:
        """Return the two ends of the calibrated band of the loss at some points."""
        assert self.back_test is not None, "without a back-test there is no band"
        claimed = claim_of(self.fit, self.replicates, variables)
        scale = self.fit.form.scale
        horizon = np.log(variables[scale] / self.fit.points.variables[scale].max())
        widths = self.back_test.multiplier(self.confidence) * band_scale(claimed.errors, horizon)
        return np.exp(claimed.predicted - widths), np.exp(claimed.predicted + widths)


def study(
    points: ScalingPoints,
    form: ScalingForm | None = None,
    *,
    targets: Sequence[Mapping[str, float]] = (),
    task: Task | None = None,
    delta: float = HUBER_DELTA,
    num_resamples: int = NUM_RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    is_strict: bool = False,
) -> ScalingStudy:
    """Fit, resample, back-test and predict; a function of its arguments.

    Without a form, it is chosen by back-test (`choose_form`). `is_strict` rejects targets beyond the back-test's
    horizon. Raises `DataError` if no law can be fitted; errors of single targets are in the result.
    """
    form, errors = (form, {}) if form is not None else choose_form(points, delta=delta, seed=seed)
    fit = fit_scaling_law(points, form, delta=delta, seed=seed)
    replicates = resampled(fit, num_resamples=num_resamples, seed=seed)
    law = scaling_law(fit, replicates, seed=seed)
    task_fit = None if task is None else fit_task(fit, task)
    back_test = task_tested = back_test_error = task_untested = None
    try:
        back_test = back_test_law(points, form, delta=delta, seed=seed)
    except AssayError as error:
        back_test_error = error
    if task is not None:
        try:
            task_tested = back_test_task(points, form, task, delta=delta, seed=seed)
        except AssayError as error:
            task_untested = DataError(f"the score: {error}")

    def predict_target(target: Mapping[str, float]) -> ExtrapolatedTarget:
        if back_test is None:
            return ExtrapolatedTarget(target, error=back_test_error)
        how: dict[str, Any] = {"confidence": confidence, "is_strict": is_strict}
        try:
            prediction = extrapolate(fit, replicates, back_test, law, target, **how)
        except AssayError as error:
            return ExtrapolatedTarget(target, error=error)
        if task_fit is None or task_tested is None:
            return ExtrapolatedTarget(target, prediction, error=task_untested)
        try:
            score = extrapolate_task(task_fit, task_tested, target, seed=seed, **how)
        except AssayError as error:
            return ExtrapolatedTarget(target, prediction, error=error)
        return ExtrapolatedTarget(target, prediction, score)

    targets_ = [predict_target(target) for target in targets]
    return ScalingStudy(fit, replicates, law, back_test, back_test_error, errors, task_fit, targets_, confidence)
