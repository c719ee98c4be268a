"""Which form a law has is told by predictions of larger runs, and not by how well it fits."""

import numpy as np
import pytest

from assay.statistics.scaling.backtest import BackTest, Origin
from assay.statistics.scaling.extrapolate import choose_form
from assay.statistics.scaling.fit import HUBER_DELTA
from assay.statistics.scaling.points import scaling_points
from variants import slow

EQUAL = {"A": 480.0, "B": 2100.0, "E": 1.82, "alpha": 0.36, "beta": 0.36}
UNLIKE = {"A": 20.0, "B": 9e4, "E": 1.2, "alpha": 0.15, "beta": 0.55}


@pytest.mark.parametrize(
    ("truth", "form"), [(EQUAL, "over-training"), pytest.param(UNLIKE, "chinchilla", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("seed", [0, *slow(1)])
def test_the_form_of_the_law_behind_the_points_is_found(ladder, truth, form, seed):
    chosen, errors = choose_form(ladder(truth=truth, seed=seed, noise=0.002), delta=HUBER_DELTA)
    assert chosen.name == form
    assert errors.keys() == {"chinchilla", "over-training"}


def test_points_that_vary_in_one_thing_have_a_form_of_one(ladder):
    points = ladder()
    tokens = points.variables["tokens"]
    of_tokens = scaling_points(points.loss, parameters=np.full(len(tokens), 1e8), tokens=tokens)
    assert choose_form(of_tokens, delta=HUBER_DELTA)[0].name == "tokens"
    of_compute = scaling_points(points.loss, compute=points.variables["compute"])
    chosen, errors = choose_form(of_compute, delta=HUBER_DELTA)
    assert (chosen.name, errors) == ("compute", {})


def test_points_too_few_for_a_test_take_the_form_that_they_can_tell(ladder):
    few = ladder().where(np.arange(0, 40, 5))  # eight points, as many as one exponent takes
    chosen, errors = choose_form(few, delta=HUBER_DELTA)
    assert (chosen.name, errors) == ("over-training", {})


def test_the_error_of_a_back_test_counts_each_origin_once_and_distance_by_its_root():
    near = Origin(10, horizon=np.array([0.0, 3.0]), errors=np.array([0.1, -0.4]), claimed=np.ones(2))
    far = Origin(20, horizon=np.array([8.0]), errors=np.array([-0.9]), claimed=np.ones(1))
    mean, error = BackTest((near, far), max_horizon=8.0).error()
    assert mean == pytest.approx(((0.1 + 0.4 / 2) / 2 + 0.9 / 3) / 2)
    assert error == pytest.approx(abs((0.1 + 0.4 / 2) / 2 - 0.9 / 3) / 2)
