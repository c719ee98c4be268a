"""From scale to a task's score, in two steps: the law gives the loss, a sigmoid turns loss into a score.

    score = chance + (ceiling - chance) / (1 + exp(slope (loss - midpoint)))

Losses are smooth in scale where scores are not, so the two steps use what each is good at (OLMo's model
ladder, Bhagia et al. 2024; Gadre et al. 2024 join the steps likewise). `chance` and `ceiling` are known of a
task, not fitted: runs that are far from the ceiling say nothing about it, and a fit would then promise
whatever it likes. The band is the back-test's of the two steps together: errors of the law, of the sigmoid,
and of the scores.
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
from assay.statistics.scaling.backtest import (
    BackTest,
    Claim,
    half_width_68,
    residual_scale,
    run_back_test,
)
from assay.statistics.scaling.bootstrap import bootstrap, resample_counts
from assay.statistics.scaling.extrapolate import (
    ORIGIN_RESAMPLES,
    ORIGIN_STARTS,
    supported_horizon,
    target_of,
)
from assay.statistics.scaling.fit import ScalingFit, fit_scaling_law
from assay.statistics.scaling.forms import ScalingForm
from assay.statistics.scaling.points import ScalingPoints, Variables

_SHAPES = ("midpoint", "log slope")
LEVEL_P_VALUE = 0.01
"""The chance that luck alone has a level fit so much better, below which the level is named."""


class Task(NamedTuple):
    """What is known of a downstream task beforehand."""

    chance: float
    """Score of guessing."""
    ceiling: float = 1.0
    """The best score that there is."""


class TaskCurve(NamedTuple):
    """A task's score as a function of loss."""

    task: Task
    midpoint: float
    """Loss at which half of the way from chance to ceiling is done."""
    slope: float
    """Per unit of loss, at the midpoint, times four over the height."""

    def score(self, losses: Float64[np.ndarray, "point"]) -> Float64[np.ndarray, "point"]:
        """[point]: between chance and ceiling, higher for lower loss."""
        rise: np.ndarray = expit(-self.slope * (losses - self.midpoint))
        return self.task.chance + (self.task.ceiling - self.task.chance) * rise


class TaskFit(NamedTuple):
    """Both steps, fitted to the same points."""

    law: ScalingFit
    curve: TaskCurve
    level: float | None = None
    """At which the scores level off, clearly above the chance that was stated; None where they do not."""

    def score(self, variables: Variables) -> Float64[np.ndarray, "point"]:
        """[point]: the score at other points."""
        return self.curve.score(np.exp(self.law.log_loss(variables)))


def fit_task(law: ScalingFit, task: Task) -> TaskFit:
    """Fit the sigmoid to the law's own points, which must have scores.

    Raises `ConfigError` for a chance and ceiling that are no range, `DataError` where the scores do not
    follow the loss.
    """
    if not 0.0 <= task.chance < task.ceiling <= 1.0:
        raise ConfigError(
            f"chance={task.chance:g}, ceiling={task.ceiling:g}: expected 0 <= chance < ceiling <= 1."
        )
    points = law.points
    if points.scores is None:
        raise DataError("the points have no scores. Name the column that holds the task's accuracy.")
    curve = _fit_curve(points, np.ones(points.num_points), task)
    fitted = curve.score(points.loss)
    noise = float(np.std(points.scores - fitted))
    if np.ptp(points.scores) == 0.0 or np.ptp(fitted) < 2.0 * noise:
        raise DataError(
            f"the scores lie between {points.scores.min():.3f} and {points.scores.max():.3f} (chance is "
            f"{task.chance:g}) and hardly follow the loss: the curve rises by {np.ptp(fitted):.3f}, the scores "
            f"scatter by {noise:.3f}. Score more items, or add runs that are above chance."
        )
    return TaskFit(law, curve, _level(points, curve))


def _level(points: ScalingPoints, curve: TaskCurve) -> float | None:
    """Where the scores level off, if a level of their own fits clearly better than the stated chance.

    By an F test of one parameter more, in which the checkpoints of one run count once.
    """
    assert points.scores is not None, "a task is fitted to points with scores"
    chance, ceiling = curve.task
    scores, num_runs = points.scores, len(np.unique(points.groups))
    free = num_runs - len(_SHAPES) - 1
    if free < 1 or scores.min() <= chance:
        return None

    def misfit(level: float) -> float:
        of_level = _fit_curve(points, np.ones(points.num_points), Task(level, ceiling))
        return float(np.sum((of_level.score(points.loss) - scores) ** 2))

    bounds = (chance, min(float(np.median(scores)), ceiling - 1e-3))
    found = minimize_scalar(misfit, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    stated = float(np.sum((curve.score(points.loss) - scores) ** 2))
    gain = (stated - found.fun) * num_runs / points.num_points
    left = max(found.fun, 1e-300) * num_runs / points.num_points / free
    return float(found.x) if f_distribution.sf(gain / left, 1, free) < LEVEL_P_VALUE else None


def back_test_task(
    points: ScalingPoints, form: ScalingForm, task: Task, *, delta: float, seed: int = 0
) -> BackTest:
    """The record of both steps together on these points, in units of the score."""
    form.check(points)

    def claim(below: Int[np.ndarray, "below"], above: Int[np.ndarray, "above"]) -> Claim:
        law = fit_scaling_law(points.where(below), form, delta=delta, num_starts=ORIGIN_STARTS, seed=seed)
        curve = _fit_curve(law.points, np.ones(len(below)), task)
        counts = resample_counts(law.points.groups, ORIGIN_RESAMPLES, np.random.default_rng(seed))
        return _claim_of(TaskFit(law, curve), counts, bootstrap(law, counts), points.where(above).variables)

    assert points.scores is not None, "fit_task has refused points without scores"
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
    """The score of one new run at `target`; refused where the points do not reach so far, as the loss is."""
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
    points, curve = fit.law.points, fit.curve
    assert points.scores is not None, "a task is fitted to points with scores"
    losses = np.exp(fit.law.log_losses(variables, theta))
    replicates = np.array(
        [
            _fit_curve(points, count, curve.task, near=curve).score(loss)
            for count, loss in zip(counts, losses, strict=True)
        ]
    )
    residuals = points.scores - fit.score(points.variables)
    scale = points.variables[fit.law.form.scale]
    num_parameters = len(fit.law.form.parameter_names) + len(_SHAPES)
    residual = residual_scale(residuals, scale, num_parameters=num_parameters)
    from_parameters = half_width_68(replicates)
    return Claim(fit.score(variables), np.hypot(from_parameters, residual), from_parameters)


def _fit_curve(
    points: ScalingPoints, weights: Real[np.ndarray, "point"], task: Task, *, near: TaskCurve | None = None
) -> TaskCurve:
    """Weighted least squares over midpoint and log slope, from several starts (one, where it is near)."""
    losses, scores = points.loss, points.scores
    assert scores is not None, "a task is fitted to points with scores"
    roots = np.sqrt(weights)
    loss_range = max(float(np.ptp(losses)), 1e-9)

    def curve_of(shape: Float64[np.ndarray, "shape"]) -> TaskCurve:
        return TaskCurve(task, float(shape[0]), float(np.exp(np.clip(shape[1], -20.0, 20.0))))

    def misfit(shape: Float64[np.ndarray, "shape"]) -> Float64[np.ndarray, "point"]:
        misses: np.ndarray = roots * (curve_of(shape).score(losses) - scores)
        return misses

    starts = [(near.midpoint, np.log(near.slope))] if near is not None else _curve_starts(losses, loss_range)
    middle = float(np.mean(losses))
    bounds = (
        [middle - 20 * loss_range, np.log(0.05 / loss_range)],
        [middle + 20 * loss_range, np.log(200.0 / loss_range)],
    )
    found = [least_squares(misfit, np.clip(start, *bounds), bounds=bounds) for start in starts]
    return curve_of(min(found, key=lambda solution: solution.cost).x)


def _curve_starts(losses: Float64[np.ndarray, "point"], loss_range: float) -> list[tuple[float, float]]:
    middles = (float(losses.min()) - loss_range, float(losses.min()), float(np.mean(losses)))
    return [(middle, float(np.log(slope / loss_range))) for middle in middles for slope in (1.0, 4.0)]
