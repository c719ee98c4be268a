"""What a table of scores shows against its runs' being alike and apart."""

import numpy as np
import pytest
from scipy.stats import t as students

from assay.statistics.effect import paired_effect
from assay.statistics.seeds.outliers import (
    OUTLIER_LEVEL,
    UNDERDISPERSION_LEVEL,
    is_underdispersed,
    outlier_runs,
)


def suspected(scores, items=0.05, seed=0):
    """Outliers in [arm, seed] scores whose runs also have noise on 400 items each."""
    noise = items * np.random.default_rng(seed).normal(size=(scores.shape[1], 400))
    differences = (scores[1] - scores[0])[:, None] + noise
    return outlier_runs(scores, paired_effect(differences))


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_a_run_stands_apart_by_the_outlier_test_of_a_linear_model(seeds):
    """The t of a mean that is the run's own, in a regression on both arms."""
    scores = np.random.default_rng(seeds).normal(size=(2, seeds))
    scores[1, 0] -= 30.0
    design = np.zeros((2 * seeds, 3))
    design[:seeds, 0] = design[seeds:, 1] = design[seeds, 2] = 1.0
    found, squares, *_ = np.linalg.lstsq(design, scores.ravel())
    degrees = 2 * seeds - 3
    error = np.sqrt(squares[0] / degrees * np.linalg.inv(design.T @ design)[2, 2])
    chance = 2 * students.sf(abs(found[2]) / error, degrees) * scores.size
    (apart,) = suspected(scores)
    assert chance < OUTLIER_LEVEL and (apart.arm, apart.seed_index) == (1, 0)
    assert apart.distance == pytest.approx(found[2])


@pytest.mark.parametrize(
    ("seeds", "least"),
    [(5, 0.9), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((3, 0.45), (8, 0.99)))],
)
def test_a_crash_of_eight_standard_deviations_is_named_and_luck_seldom(seeds, least):
    rng = np.random.default_rng(seeds)
    scores = rng.normal(size=(1500, 2, seeds))
    false_alarms = np.mean([bool(suspected(score)) for score in scores])
    assert false_alarms <= OUTLIER_LEVEL + 0.015
    scores[:, 1, 1] -= 8.0
    named = [[(run.arm, run.seed_index) for run in suspected(table)] for table in scores]
    assert np.mean([(1, 1) in run for run in named]) >= least


def test_runs_that_differ_by_their_items_luck_alone_do_not_stand_apart():
    scores = np.array([[0.7, 0.7, 0.7], [0.71, 0.71, 0.712]])
    assert not suspected(scores, items=0.3)
    assert suspected(scores, items=1e-4)
    assert not suspected(np.full((2, 5), 0.7)) and not suspected(scores[:, :2])


def test_seeds_that_agree_better_than_their_own_items_let_them_are_suspected():
    rng = np.random.default_rng(1)
    found = []
    for seed_sd in (0.0, 0.0, 0.02):
        tables = rng.normal(size=(1500, 5, 200)) + seed_sd * rng.normal(size=(1500, 5, 1))
        if not found:
            tables = tables - 0.9 * tables.mean(axis=2, keepdims=True)  # drawn together, as one seed's runs are
        found.append(np.mean([is_underdispersed(paired_effect(table)) for table in tables]))
    together, apart, noisy = found
    assert together > 0.9
    assert apart == pytest.approx(UNDERDISPERSION_LEVEL, abs=0.01) and noisy <= UNDERDISPERSION_LEVEL
