"""Predict a downstream task's score in two steps: the law gives the loss, and a sigmoid maps loss to score.

    score = chance + (ceiling - chance) / (1 + exp(slope (loss - midpoint)))

Loss is smooth in scale and the score is not, so two steps fit better than one (OLMo's model ladder, Bhagia et al. 2024;
Gadre et al. 2024). `chance` and `ceiling` are properties of the task and are not fitted: runs far from the ceiling do
not determine it. The band comes from a back-test of both steps together, so it holds the errors of the law, of the
sigmoid and of the scores.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares, minimize_scalar
from scipy.special import expit
from scipy.stats import f as f_distribution

from assay.base.errors import ConfigError, DataError
from assay.base.shapes import Float64, Int, Int64, Real
from assay.records.evaluation import Estimate
from assay.statistics.interval import symmetric
from assay.statistics.scaling.backtest import BackTest, Claim, half_width_68, residual_scale, run_back_test
from assay.statistics.scaling.bootstrap import bootstrap, resample_counts
from assay.statistics.scaling.extrapolate import ORIGIN_RESAMPLES, ORIGIN_STARTS, supported_horizon, target_of
from assay.statistics.scaling.fit import ScalingFit, fit_scaling_law
from assay.statistics.scaling.forms import ScalingForm
from assay.statistics.scaling.points import ScalingPoints, Variables

_SHAPES = ("midpoint", "log slope")
LEVEL_P_VALUE = 0.01
"""Significance at which a fitted floor of the scores is reported instead of the stated chance level."""


class Task(NamedTuple):
    """What is known of a downstream task beforehand."""

    chance: float
    """Score of guessing."""
    ceiling: float = 1.0
    """Highest possible score."""


class TaskSigmoid(NamedTuple):
    """A task's score as a function of loss."""

    task: Task
    midpoint: float
    """Loss at which the score is halfway between chance and ceiling."""
    slope: float
    """Steepness of the sigmoid per unit of loss."""

    def score(self, losses: Float64[np.ndarray, "point"]) -> Float64[np.ndarray, "point"]:
        """[point]: score between chance and ceiling; lower loss scores higher."""
        rise: np.ndarray = expit(-self.slope * (losses - self.midpoint))
        return self.task.chance + (self.task.ceiling - self.task.chance) * rise


class TaskFit(NamedTuple):
    """A law and a sigmoid, fitted to the same points."""

    law: ScalingFit
    sigmoid: TaskSigmoid
    level: float | None = None
    """Fitted floor of the scores if it lies clearly above the stated chance level; else None."""

    def score(self, variables: Variables) -> Float64[np.ndarray, "point"]:
        return self.sigmoid.score(np.exp(self.law.log_loss(variables)))


def fit_task(law: ScalingFit, task: Task) -> TaskFit:
    """Fit the sigmoid to the law's points, which must have scores.

    Raises `ConfigError` unless 0 <= chance < ceiling <= 1, and `DataError` if the scores do not follow the loss.
    """
    if not 0.0 <= task.chance < task.ceiling <= 1.0:
        raise ConfigError(f"chance={task.chance:g}, ceiling={task.ceiling:g}: expected 0 <= chance < ceiling <= 1.")
    points = law.points
    if points.scores is None:
        raise DataError("the points have no scores. Name the column that holds the task's accuracy.")
    sigmoid = _fit_sigmoid(points, np.ones(points.num_points), task)
    fitted = sigmoid.score(points.loss)
    noise = float(np.std(points.scores - fitted))
    if np.ptp(points.scores) == 0.0 or np.ptp(fitted) < 2.0 * noise:
        raise DataError(
            f"the scores lie between {points.scores.min():.3f} and {points.scores.max():.3f} (chance is "
            f"{task.chance:g}) and hardly follow the loss: the curve rises by {np.ptp(fitted):.3f}, the scores "
            f"scatter by {noise:.3f}. Score more items, or add runs that are above chance."
        )
    return TaskFit(law, sigmoid, _level(points, sigmoid))


def _level(points: ScalingPoints, sigmoid: TaskSigmoid) -> float | None:
    """Return the floor of the scores if it fits clearly better than the stated chance level.

    Uses an F test of one more parameter; the checkpoints of one run count once.
    """
    assert points.scores is not None, "a task is fitted to points with scores"
    chance, ceiling = sigmoid.task
    scores, num_runs = points.scores, len(np.unique(points.groups))
    free = num_runs - len(_SHAPES) - 1
    if free < 1 or scores.min() <= chance:
        return None

    def misfit(level: float) -> float:
        of_level = _fit_sigmoid(points, np.ones(points.num_points), Task(level, ceiling))
        return float(np.sum((of_level.score(points.loss) - scores) ** 2))

    bounds = (chance, min(float(np.median(scores)), ceiling - 1e-3))
    found = minimize_scalar(misfit, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    stated = float(np.sum((sigmoid.score(points.loss) - scores) ** 2))
    gain = (stated - found.fun) * num_runs / points.num_points
    left = max(found.fun, 1e-300) * num_runs / points.num_points / free
    return float(found.x) if f_distribution.sf(gain / left, 1, free) < LEVEL_P_VALUE else None


def back_test_task(points: ScalingPoints, form: ScalingForm, task: Task, *, delta: float, seed: int = 0) -> BackTest:
    """Back-test the law and the sigmoid together, in units of the score."""
    form.check(points)

    def claim(below: Int[np.ndarray, "below"], above: Int[np.ndarray, "above"]) -> Claim:
        law = fit_scaling_law(points.where(below), form, delta=delta, num_starts=ORIGIN_STARTS, seed=seed)
        sigmoid = _fit_sigmoid(law.points, np.ones(len(below)), task)
        counts = resample_counts(law.points.groups, ORIGIN_RESAMPLES, np.random.default_rng(seed))
        return _claim_of(TaskFit(law, sigmoid), counts, bootstrap(law, counts), points.where(above).variables)

    assert points.scores is not None, "fit_task rejects points without scores"
    scale = points.variables[form.scale]
    return run_back_test(scale, points.scores, claim, min_points=form.min_points + 2 * len(_SHAPES))


def extrapolate_task(
    fit: TaskFit,
    back_test: BackTest,
    target: Mapping[str, float],
    *,
    confidence: float,
    seed: int = 0,
    is_strict: bool = False,
) -> Estimate:
    """Predict the score of one new run at `target`. Raises like `extrapolate` if the points do not support the
    target."""
    form = fit.law.form
    at = target_of(form, target)
    horizon = supported_horizon(fit.law.points, form, back_test, at, is_strict=is_strict)
    counts = resample_counts(fit.law.points.groups, ORIGIN_RESAMPLES, np.random.default_rng(seed))
    variables = {name: np.array([value]) for name, value in at.items()}
    claimed = _claim_of(fit, counts, bootstrap(fit.law, counts), variables)
    return symmetric(
        float(claimed.predicted[0]),
        back_test.half_width(claimed, horizon, confidence),
        confidence=confidence,
        method=f"loss, then sigmoid; back-test at {len(back_test.origins)} origins",
        lowest=0.0,
        highest=1.0,
    )


def _claim_of(
    fit: TaskFit,
    counts: Int64[np.ndarray, "resample point"],
    theta: Float64[np.ndarray, "resample parameter"],
    variables: Mapping[str, Float64[np.ndarray, "other"]],
) -> Claim:
    points, sigmoid = fit.law.points, fit.sigmoid
    assert points.scores is not None, "a task is fitted to points with scores"
    losses = np.exp(fit.law.log_losses(variables, theta))
    replicates = np.array(
        [
            _fit_sigmoid(points, count, sigmoid.task, near=sigmoid).score(loss)
            for count, loss in zip(counts, losses, strict=True)
        ]
    )
    residuals = points.scores - fit.score(points.variables)
    scale = points.variables[fit.law.form.scale]
    num_parameters = len(fit.law.form.parameter_names) + len(_SHAPES)
    residual = residual_scale(residuals, scale, num_parameters=num_parameters)
    from_parameters = half_width_68(replicates)
    return Claim(fit.score(variables), np.hypot(from_parameters, residual), from_parameters)


def _fit_sigmoid(
    points: ScalingPoints, weights: Real[np.ndarray, "point"], task: Task, *, near: TaskSigmoid | None = None
) -> TaskSigmoid:
    """Fit midpoint and log slope by weighted least squares, from several starts or from `near`."""
    losses, scores = points.loss, points.scores
    assert scores is not None, "a task is fitted to points with scores"
    roots = np.sqrt(weights)
    loss_range = max(float(np.ptp(losses)), 1e-9)

    def sigmoid_of(shape: Float64[np.ndarray, "shape"]) -> TaskSigmoid:
        return TaskSigmoid(task, float(shape[0]), float(np.exp(np.clip(shape[1], -20.0, 20.0))))

    def misfit(shape: Float64[np.ndarray, "shape"]) -> Float64[np.ndarray, "point"]:
        misses: np.ndarray = roots * (sigmoid_of(shape).score(losses) - scores)
        return misses

    starts = [(near.midpoint, np.log(near.slope))] if near is not None else _sigmoid_starts(losses, loss_range)
    middle = float(np.mean(losses))
    bounds = (
        [middle - 20 * loss_range, np.log(0.05 / loss_range)],
        [middle + 20 * loss_range, np.log(200.0 / loss_range)],
    )
    found = [least_squares(misfit, np.clip(start, *bounds), bounds=bounds) for start in starts]
    return sigmoid_of(min(found, key=lambda solution: solution.cost).x)


def _sigmoid_starts(losses: Float64[np.ndarray, "point"], loss_range: float) -> list[tuple[float, float]]:
    middles = (float(losses.min()) - loss_range, float(losses.min()), float(np.mean(losses)))
    return [(middle, float(np.log(slope / loss_range))) for middle in middles for slope in (1.0, 4.0)]
