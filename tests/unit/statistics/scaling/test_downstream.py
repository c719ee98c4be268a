"""From scale to a task's score."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.base.errors import ConfigError, DataError
from assay.statistics.scaling.downstream import Task, TaskSigmoid, fit_task
from assay.statistics.scaling.fit import fit_scaling_law
from assay.statistics.scaling.forms import FORMS
from assay.statistics.scaling.points import ScalingPoints, scaling_points
from assay.statistics.scaling.study import study
from variants import slow

CURVE = TaskSigmoid(Task(0.25), midpoint=2.4, slope=3.0)


def scored(points: ScalingPoints, *, noise: float, sigmoid: TaskSigmoid = CURVE) -> ScalingPoints:
    scores = sigmoid.score(points.loss) + np.random.default_rng(4).normal(0, noise, points.num_points)
    return scaling_points(points.loss, scores=scores.clip(0, 1), **points.variables)


@given(losses=st.lists(st.floats(0.1, 20), min_size=2, max_size=9))
def test_a_score_lies_between_chance_and_ceiling_and_falls_with_loss(losses):
    scores = CURVE.score(np.sort(losses))
    assert ((scores >= 0.25) & (scores <= 1.0)).all()
    assert (np.diff(scores) <= 0).all()


def test_a_known_curve_is_found(ladder):
    fit = fit_task(fit_scaling_law(scored(ladder(), noise=0.0)), Task(0.25))
    assert fit.sigmoid[1:] == pytest.approx(CURVE[1:], rel=1e-4)


@pytest.mark.parametrize("seed", [0, *slow(1, 2, 3)])
@pytest.mark.parametrize(("stated", "truth", "level"), [(0.0, 0.25, 0.25), (0.25, 0.25, None), (0.0, 0.0, None)])
def test_scores_that_level_off_above_the_stated_chance_are_noticed(ladder, seed, stated, truth, level):
    points = ladder(seed=seed)
    scores = CURVE._replace(task=Task(truth)).score(points.loss)
    scores += np.random.default_rng(seed).normal(0, 0.008, points.num_points)
    scored_points = scaling_points(points.loss, scores=scores.clip(0, 1), **points.variables)
    found = fit_task(fit_scaling_law(scored_points), Task(stated)).level
    assert found == (None if level is None else pytest.approx(level, abs=0.02))


@pytest.mark.slow
def test_the_score_of_a_larger_run_lies_in_its_band(ladder, truth):
    target = {"parameters": 1.3e10, "tokens": 2.6e11}
    found = study(
        scored(ladder(), noise=0.008), FORMS["chinchilla"], targets=[target], task=Task(0.25), num_resamples=100
    )
    loss = truth["E"] + truth["A"] / 1.3e10 ** truth["alpha"] + truth["B"] / 2.6e11 ** truth["beta"]
    score = found.targets[0].score
    assert score.low < CURVE.score(np.array([loss]))[0] < score.high
    assert score.high - score.low < 0.15


@pytest.mark.parametrize("level", [0.0, 0.25, 1.0])
def test_a_task_on_which_all_runs_score_alike_is_refused(ladder, level):
    flat = replace(ladder(), scores=np.full(ladder().num_points, level))
    with pytest.raises(DataError, match="hardly follow the loss"):
        study(flat, FORMS["chinchilla"], targets=[], task=Task(0.25), num_resamples=10)


def test_a_task_at_chance_is_refused(ladder):
    flat = scored(ladder(), noise=0.02, sigmoid=CURVE._replace(midpoint=0.2))
    with pytest.raises(DataError, match="hardly follow the loss"):
        fit_task(fit_scaling_law(flat), Task(0.25))


def test_a_chance_above_the_ceiling_and_points_without_scores_are_refused(ladder):
    fit = fit_scaling_law(ladder())
    with pytest.raises(DataError, match="no scores"):
        fit_task(fit, Task(0.25))
    with pytest.raises(ConfigError, match="0 <= chance < ceiling"):
        fit_task(fit, Task(0.5, 0.4))
