"""Predictions of larger runs: bands that hold, and refusals that say how far one may go."""

from dataclasses import replace

import numpy as np
import pytest

from assay.base.errors import ConfigError, DataError
from assay.statistics.interval import normal_quantile
from assay.statistics.scaling.backtest import BackTest, Claim, Origin, run_back_test
from assay.statistics.scaling.downstream import Task
from assay.statistics.scaling.extrapolate import check_bands
from assay.statistics.scaling.fit import HUBER_DELTA
from assay.statistics.scaling.forms import FORMS
from assay.statistics.scaling.points import scaling_points
from assay.statistics.scaling.study import study
from variants import slow

CHINCHILLA = FORMS["chinchilla"]


def loss_at(truth: dict[str, float], parameters: float, tokens: float) -> float:
    return truth["E"] + truth["A"] / parameters ** truth["alpha"] + truth["B"] / tokens ** truth["beta"]


def predict(points, *targets, **options):
    found = study(points, CHINCHILLA, targets=targets, num_resamples=100, **options)
    return found.targets


@pytest.mark.slow
def test_the_band_holds_a_larger_run_and_widens_with_distance(ladder, truth):
    near, far = predict(ladder(), {"parameters": 4e9, "tokens": 8e10}, {"parameters": 3e10, "tokens": 6e11})
    for target, parameters, tokens in ((near, 4e9, 8e10), (far, 3e10, 6e11)):
        assert target.prediction.loss.low < loss_at(truth, parameters, tokens) < target.prediction.loss.high
    widths = [np.log(target.prediction.loss.high / target.prediction.loss.low) for target in (near, far)]
    assert widths[0] < widths[1]
    assert near.prediction.times_beyond_data < far.prediction.times_beyond_data < far.prediction.times_supported


@pytest.mark.parametrize("noise", [0.0, *slow(1e-13)])
def test_points_that_lie_on_a_law_exactly_have_a_band_of_numbers(ladder, truth, noise):
    (found,) = predict(ladder(noise=noise), {"parameters": 4e9, "tokens": 8e10})
    loss = found.prediction.loss
    assert loss.low <= loss_at(truth, 4e9, 8e10) <= loss.high
    assert 0.0 < loss.high - loss.low < 1e-6


@pytest.mark.slow
def test_what_the_points_do_not_support_is_refused_with_what_they_do(ladder):
    too_far, too_small, too_lean, partial = predict(
        ladder(),
        {"parameters": 1e14, "tokens": 2e15},
        {"parameters": 1e5, "tokens": 2e6},
        {"parameters": 3e9, "tokens": 3e9},
        {"parameters": 1e10},
        is_strict=True,
    )
    assert isinstance(too_far.error, DataError)
    supported = str(too_far.error).split("up to ")[2].split(" FLOP")[0]
    assert "below the smallest run" in str(too_small.error)
    assert "1 tokens per parameter" in str(too_lean.error)
    assert "supports 2.5 to 160" in str(too_lean.error)
    assert isinstance(partial.error, ConfigError)
    # What the refusal offers is granted.
    (granted,) = predict(ladder(), {"compute": 0.99 * float(supported), "parameters": (float(supported) / 120) ** 0.5})
    assert granted.error is None


@pytest.mark.slow
def test_a_target_beyond_what_was_tested_gets_its_band_and_its_mark(ladder):
    near, far = predict(ladder(), {"parameters": 4e9, "tokens": 8e10}, {"parameters": 1e14, "tokens": 2e15})
    assert (near.is_untested, far.is_untested) == (False, True)
    assert far.error is None
    assert far.prediction.times_beyond_data > far.prediction.times_supported
    widths = [np.log(target.prediction.loss.high / target.prediction.loss.low) for target in (near, far)]
    assert widths[1] > widths[0]


@pytest.mark.slow
def test_a_score_that_cannot_be_tested_is_refused_beside_the_loss_and_never_in_silence():
    """Scores need more points below an origin than losses do."""
    tokens = np.geomspace(1e6, 1e9, 16)
    loss = (0.5 + 30 * tokens**-0.2) * np.exp(np.random.default_rng(0).normal(0, 0.005, 16))
    points = replace(scaling_points(loss, tokens=tokens), scores=1 / (1 + np.exp(3 * (loss - 1.2))))
    for number, is_scored in ((12, False), (16, True)):
        few = points.where(np.arange(number))
        options = {
            "task": Task(0.0, 1.0),
            "num_resamples": 100,
            "targets": [{"tokens": 1.5 * tokens[number - 1]}],
        }
        (target,) = study(few, FORMS["tokens"], **options).targets
        assert target.prediction is not None
        assert (target.score is not None) == is_scored
        assert is_scored or str(target.error).startswith("the score: 12 points are too few")


def test_too_few_points_for_a_back_test_are_fitted_and_never_extrapolated(ladder):
    points = ladder()
    few = study(
        points.where(np.arange(0, 40, 4)),
        CHINCHILLA,
        targets=[{"compute": 1e21, "tokens": 1e11}],
        num_resamples=100,
    )
    assert few.law.num_points == 10
    assert few.back_test is None
    assert "too few to test an extrapolation" in str(few.targets[0].error)


@pytest.mark.slow
def test_a_study_is_a_function_of_its_arguments(ladder):
    target = {"parameters": 4e9, "tokens": 8e10}
    one, other = predict(ladder(), target, seed=3), predict(ladder(), target, seed=3)
    assert one[0].prediction == other[0].prediction


@pytest.mark.parametrize(("true_error", "expected"), [(1.0, 1.0), (3.0, 3.0)])
def test_claims_that_are_too_small_are_made_up_for_by_the_multiplier(true_error, expected):
    rng = np.random.default_rng(0)
    scale = np.geomspace(1, 1e4, 400)

    def claim(below, above):
        horizon = np.log(scale[above] / scale[below].max())
        return Claim(np.zeros(len(above)), np.ones(len(above)) / np.sqrt(1 + horizon), np.ones(len(above)))

    back_test = run_back_test(scale, rng.normal(0, true_error, 400), claim, min_points=10)
    assert back_test.multiplier(0.9) == pytest.approx(expected * normal_quantile(0.9), rel=0.2)


def test_one_origin_of_ten_does_not_widen_all_bands():
    def origin(error):
        return Origin(10, np.zeros(50), np.full(50, error), np.ones(50))

    back_test = BackTest((*[origin(2.0)] * 10, origin(9.0)), 1.0)
    assert back_test.multiplier(0.9) == pytest.approx(2.0)
    lucky = BackTest((origin(0.1),) * 3, 1.0)
    assert lucky.multiplier(0.9) == pytest.approx(0.6 * normal_quantile(0.9))


def test_an_origin_that_no_law_fits_is_left_out_and_named():
    scale = np.geomspace(1, 1e3, 30)

    def claim(below, above):
        if len(below) < 12:
            raise DataError("2 different values of parameters where there are 4")
        return Claim(np.zeros(len(above)), np.ones(len(above)), np.ones(len(above)))

    back_test = run_back_test(scale, np.zeros(30), claim, min_points=6)
    assert 3 <= len(back_test.origins) < 8 and all(origin.num_fitted >= 12 for origin in back_test.origins)
    assert back_test.left_out and all("2 different values" in reason for reason in back_test.left_out)

    def hardly(below, above):
        if len(below) < 25:
            raise DataError("they are all of one size")
        return claim(below, above)

    with pytest.raises(DataError, match=r"only 1 origin could be fitted.*it needs 3.*all of one size"):
        run_back_test(scale, np.zeros(30), hardly, min_points=6)


def test_an_origin_never_parts_runs_of_one_scale():
    scale = np.repeat(np.geomspace(1, 1e3, 6), 5)
    fitted = []

    def claim(below, above):
        fitted.append(len(below))
        assert scale[below].max() < scale[above].min()
        return Claim(np.zeros(len(above)), np.ones(len(above)), np.ones(len(above)))

    run_back_test(scale, np.zeros(30), claim, min_points=6)
    assert all(count % 5 == 0 for count in fitted)


@pytest.mark.slow
def test_bands_hold_forgotten_runs_although_the_law_bends(ladder):
    # Residuals of a law that is not quite right: what plain bands do not know of.
    points = ladder(num_sizes=12)
    bent = 0.004 * (np.log(points.variables["compute"]) - np.log(points.variables["compute"]).mean()) ** 2 / 8
    crooked = scaling_points(points.loss * np.exp(bent), **points.variables)
    check = check_bands(crooked, CHINCHILLA, delta=HUBER_DELTA)
    assert 0.80 <= check.covered <= 1.0
    assert check.covered_by_bootstrap_alone < 0.7 < check.covered


@pytest.mark.soak
def test_bands_hold_the_forgotten_runs_of_hoffmann(hoffmann):
    check = check_bands(hoffmann, CHINCHILLA, delta=HUBER_DELTA)
    assert 0.80 <= check.covered <= 0.97
    assert check.covered_by_bootstrap_alone < 0.5
