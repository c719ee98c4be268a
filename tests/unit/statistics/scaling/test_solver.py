"""The solver finds minima: the derivatives vanish there, and a batch is its fits one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from assay.statistics.scaling.fit import falling_deltas
from assay.statistics.scaling.forms import FORMS
from assay.statistics.scaling.solver import (
    _damped_step,
    _Local,
    _local,
    minimise,
    objectives,
)

DELTAS = falling_deltas(1e-3)


@pytest.fixture
def problem(ladder):
    points, form = ladder(num_sizes=5), FORMS["chinchilla"]
    features = form.features(points.variables, form.center(points))
    return features, np.log(points.loss), np.array([[-1.0, -1.0, 0.5, 0.3, 0.3]])


@settings(max_examples=25, deadline=None)
@given(theta=st.lists(st.floats(-2, 1), min_size=5, max_size=5), delta=st.sampled_from([1e-3, 0.1, 10.0]))
def test_gradient_and_hessian_are_those_of_the_objective(theta, delta):
    rng = np.random.default_rng(1)
    features, targets = rng.normal(size=(30, 3, 5)), rng.normal(size=30)
    at, weights = np.array([theta]), rng.integers(0, 3, 30).astype(float)[None]

    def gradient(shift: np.ndarray) -> np.ndarray:
        return _local(features, targets[None], weights, at + shift, delta).gradient[0]

    here = _local(features, targets[None], weights, at, delta)
    for index in range(5):
        step = 1e-7 * np.eye(5)[index]
        rise = objectives(features, targets, weights, at + step, delta) - here.objective
        assert rise[0] / 1e-7 == pytest.approx(here.gradient[0, index], rel=1e-3, abs=1e-5)
    if delta == 10.0:  # no residual beyond the kink, so the second derivative exists everywhere
        step = np.full(5, 1e-6)
        np.testing.assert_allclose(gradient(step) - gradient(-step), 2 * here.hessian[0] @ step, rtol=1e-3, atol=1e-9)


def test_no_general_optimiser_gets_lower(problem):
    features, targets, start = problem
    found = minimise(features, targets, np.ones(len(targets)), start, deltas=DELTAS)
    ours = objectives(features, targets, np.ones(len(targets)), found, 1e-3)[0]

    def objective(theta: np.ndarray) -> float:
        return 1e4 * float(objectives(features, targets, np.ones(len(targets)), theta[None], 1e-3)[0])

    for shift in (0.0, 0.01, -0.01):
        polished = minimize(objective, found[0] + shift, method="Nelder-Mead", options={"maxfev": 2000})
        assert ours <= polished.fun / 1e4 * (1 + 1e-6)


def test_a_weight_of_two_is_the_point_twice(problem):
    features, targets, start = problem
    weights = np.where(np.arange(len(targets)) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(len(targets)), weights.astype(int))
    weighted = minimise(features, targets, weights, start, deltas=DELTAS)
    repeated = minimise(features[twice], targets[twice], np.ones(len(twice)), start, deltas=DELTAS)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-5)


def test_fits_of_one_batch_ignore_one_another(problem):
    features, targets, start = problem
    rng = np.random.default_rng(2)
    counts = rng.multinomial(len(targets), np.full(len(targets), 1 / len(targets)), size=300)
    starts = np.repeat(start, 300, axis=0)
    together = minimise(features, targets, counts, starts, deltas=DELTAS)
    alone = minimise(features, targets, counts[290:], starts[290:], deltas=DELTAS)
    np.testing.assert_allclose(together[290:], alone, rtol=1e-6)


def test_a_start_from_which_nothing_is_finite_hurts_nobody_else(problem):
    features, targets, start = problem
    wild = np.concatenate([start, np.full((1, 5), 1e300)])
    found = minimise(features, targets, np.ones(len(targets)), wild, deltas=DELTAS)
    alone = minimise(features, targets, np.ones(len(targets)), start, deltas=DELTAS)
    np.testing.assert_allclose(found[:1], alone, rtol=1e-6)


def test_where_parameters_are_not_told_apart_a_step_still_leads_down():
    slopes = np.random.default_rng(0).integers(1, 9, size=(200, 3)).astype(float)
    singular = slopes[:, :, None] * slopes[:, None, :]  # of rank one, with no rounding
    here = _Local(np.ones(200), slopes, singular, singular)
    steps = _damped_step(here, np.full(200, 1e-12))
    assert np.isfinite(steps).all() and ((steps * slopes).sum(axis=1) < 0).all()
