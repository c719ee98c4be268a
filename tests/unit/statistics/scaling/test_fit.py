"""Published fits come out, and known laws are found again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError, DataError
from assay.statistics.scaling.fit import LEAST_ABSOLUTE_DELTA, fit_scaling_law
from assay.statistics.scaling.forms import FORMS, form_named
from assay.statistics.scaling.points import scaling_points

# Besiroglu et al. 2024 (arXiv 2404.10102): the optimum of Hoffmann's objective, and the headline numbers.
HUBER = {
    "A": (477.8, 0.1),
    "B": (2143.0, 1.0),
    "E": (1.8172, 1e-4),
    "alpha": (0.3473, 1e-4),
    "beta": (0.3672, 1e-4),
}
HEADLINE = {
    "A": (482.01, 0.05),
    "B": (2085.43, 0.5),
    "E": (1.8169, 1e-4),
    "alpha": (0.3478, 1e-4),
    "beta": (0.3659, 1e-4),
}


@pytest.mark.parametrize(("delta", "published"), [(1e-3, HUBER), (LEAST_ABSOLUTE_DELTA, HEADLINE)])
def test_the_refit_of_chinchilla_comes_out(hoffmann, delta, published):
    found = fit_scaling_law(hoffmann, delta=delta).parameters()
    assert found == {name: pytest.approx(value, abs=within) for name, (value, within) in published.items()}


def test_the_optimum_does_not_depend_on_the_starts(hoffmann):
    reached = [fit_scaling_law(hoffmann, num_starts=8, seed=seed).objective for seed in range(4)]
    assert np.ptp(reached) < 1e-9 * reached[0]


def test_without_noise_the_law_is_found_exactly(ladder, truth):
    assert fit_scaling_law(ladder(noise=0.0)).parameters() == pytest.approx(truth, rel=1e-4)


def test_a_law_with_one_exponent_is_found_by_its_own_form(ladder, truth):
    points = ladder(noise=0.0, truth={**truth, "beta": truth["alpha"]})
    found = fit_scaling_law(points, FORMS["over-training"])
    assert found.parameters() == pytest.approx({name: truth[name] for name in ("A", "B", "E", "alpha")}, rel=1e-4)


@pytest.mark.parametrize(("form", "variable"), [("compute", "compute"), ("tokens", "tokens")])
def test_a_law_of_one_variable_needs_only_that(form, variable):
    scale = np.geomspace(1e6, 1e12, 9)
    points = scaling_points(0.5 + 30 * scale**-0.2, **{variable: scale})
    found = fit_scaling_law(points, FORMS[form]).parameters()
    assert list(found.values()) == pytest.approx([30, 0.5, 0.2], rel=1e-4)


@settings(max_examples=10, deadline=None)
@given(unit=st.floats(0.01, 100.0), thousand=st.sampled_from([1.0, 1e3, 1e9]))
def test_the_units_of_loss_and_tokens_change_coefficients_only(unit, thousand):
    rng = np.random.default_rng(3)
    scale = np.geomspace(1e6, 1e12, 15)
    loss = (0.5 + 30 * scale**-0.2) * np.exp(rng.normal(0, 0.01, 15))
    form = FORMS["tokens"]
    one = fit_scaling_law(scaling_points(loss, tokens=scale), form, num_starts=16).parameters()
    other = fit_scaling_law(scaling_points(unit * loss, tokens=scale / thousand), form, num_starts=16).parameters()
    assert other["beta"] == pytest.approx(one["beta"], rel=1e-4)
    assert other["E"] == pytest.approx(unit * one["E"], rel=1e-4)
    assert other["B"] == pytest.approx(unit * one["B"] * thousand ** -one["beta"], rel=1e-3)


def test_points_that_can_not_tell_the_parameters_apart_are_refused(ladder):
    points = ladder()
    with pytest.raises(DataError, match="9 points for the 5 parameters of 'chinchilla'"):
        fit_scaling_law(points.where(np.arange(9)))
    one_size = scaling_points(points.loss, parameters=np.full(40, 1e9), tokens=points.variables["tokens"])
    with pytest.raises(DataError, match="1 different values of parameters"):
        fit_scaling_law(one_size)
    with pytest.raises(DataError, match="have no parameters"):
        fit_scaling_law(scaling_points(points.loss, tokens=points.variables["tokens"]))
    with pytest.raises(ConfigError, match="'kaplan' is no form"):
        form_named("kaplan")


def _grid(loss_of):
    parameters, tokens = np.repeat(np.geomspace(1e7, 1e9, 6), 4), np.tile(np.geomspace(1e8, 1e11, 4), 6)
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(24))
    return scaling_points(loss_of(parameters, tokens) * noise, parameters=parameters, tokens=tokens)


@pytest.mark.parametrize("form", ["chinchilla", "over-training"])
@pytest.mark.parametrize(
    "loss_of",
    [
        lambda parameters, tokens: 2 + 400 / tokens**0.28,
        lambda parameters, tokens: np.ones(24),
        lambda parameters, tokens: np.where(parameters < 2e7, 5.0, 2.0),
        lambda parameters, tokens: 2 + parameters / 1e9 + tokens / 1e11,
    ],
    ids=["no parameters", "noise", "a step", "rising"],
)
def test_points_that_do_not_tell_two_terms_apart_are_fitted_as_well_as_any_law_does(loss_of, form):
    points = _grid(loss_of)
    fit = fit_scaling_law(points, FORMS[form], num_starts=16)
    assert np.median(np.abs(fit.residuals())) < 0.004
    assert all(np.isfinite(list(fit.parameters().values())))


def test_a_loss_that_falls_off_a_cliff_is_no_power_law():
    parameters = np.geomspace(1e9, 1.1e9, 24)
    points = scaling_points(np.exp(100 * (1.1e9 - parameters) / 1e8), parameters=parameters, tokens=parameters)
    with pytest.raises(DataError, match="diverges: the loss does not fall by a power"):
        fit_scaling_law(points, FORMS["tokens"])
