"""Seeds and items are both random; the interval of a difference knows it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from assay.base.errors import DataError
from assay.statistics.composite import breadth
from assay.statistics.effect import (
    Effect,
    estimate_of,
    paired_effect,
)
from variants import slow

TABLES = arrays(np.float64, st.tuples(st.integers(2, 4), st.integers(2, 6)), elements=st.floats(-1, 1, width=32))


def crossed_tables(rng, *, num_tables, seeds, items, seed=0.0, item=0.0, residual=0.0, cluster_size=1):
    """Differences [table, seed, item] of mean 0; each source is given by its variance of the mean."""
    clusters = items // cluster_size
    of_seeds = np.sqrt(seed * seeds) * rng.normal(size=(num_tables, seeds, 1))
    of_items = np.sqrt(item * clusters) * rng.normal(size=(num_tables, 1, clusters)).repeat(cluster_size, axis=2)
    return of_seeds + of_items + np.sqrt(residual * seeds * items) * rng.normal(size=(num_tables, seeds, items))


def coverage(effect, *, level=0.975):
    return np.mean((effect.lower(level) <= 0.0) & (effect.upper(level) >= 0.0))


MIXTURES = [
    *[(a / 4, b / 4, (4 - a - b) / 4) for a in range(5) for b in range(5 - a)],
    *[(0.9, 0.1, 0.0), (0.1, 0.9, 0.0), (0.1, 0.0, 0.9), (0.0, 0.1, 0.9), (0.05, 0.05, 0.9), (0.0, 0.8, 0.2)],
]
"""Shares of the mean's variance: seeds, items, residual."""


def estimated_effects(rng, mixture, *, seeds, items, num_tables):
    """What `paired_effect` finds of normal tables, drawn as the mean squares are distributed (Cochran 1934)."""
    seed, item, residual = mixture

    def mean_square(degrees):
        return rng.chisquare(degrees, num_tables) / degrees

    return Effect(
        mean=rng.normal(size=num_tables),
        seed_variance=(seed + residual) * mean_square(seeds - 1),
        item_variance=(item + residual) * mean_square(items - 1),
        residual_variance=residual * mean_square((seeds - 1) * (items - 1)),
        seed_degrees=np.float64(seeds - 1),
        item_degrees=items - 1,
    )


@pytest.mark.parametrize("seeds", [3, 5, *slow(4, 8, 20)])
@pytest.mark.parametrize("items", [10, 2000, *slow(30, 100)])
def test_95_percent_intervals_hold_the_truth_in_93_to_97_percent_of_every_mixture(seeds, items):
    rng = np.random.default_rng(1)
    for mixture in MIXTURES:
        found = coverage(estimated_effects(rng, mixture, seeds=seeds, items=items, num_tables=40_000))
        assert 0.93 <= found <= 0.97, f"{mixture}: {found:.4f}"


@pytest.mark.parametrize("items", [30, 2000])
def test_two_seeds_come_close_to_it(items):
    rng = np.random.default_rng(2)
    for mixture in MIXTURES:
        found = coverage(estimated_effects(rng, mixture, seeds=2, items=items, num_tables=40_000))
        assert 0.928 <= found <= 0.975, f"{mixture}: {found:.4f}"


@pytest.mark.parametrize(
    ("level", "most"),
    [
        (0.95, 1.1),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0.9, 1.1), (0.99, 1.25), (0.998, 1.6))),
    ],
)
def test_a_gates_bound_errs_hardly_more_than_its_level_allows(level, most):
    rng = np.random.default_rng(3)
    for seeds in (3, 5, 8):
        for mixture in MIXTURES:
            effect = estimated_effects(rng, mixture, seeds=seeds, items=2000, num_tables=100_000)
            # The mean is standard normal and apart from its estimated error, so its tail needs no draws.
            errors = norm.sf(effect.mean - effect.lower(level)).mean()
            assert errors <= most * (1.0 - level), f"{seeds} seeds, {mixture}: {errors:.5f}"


@pytest.mark.parametrize("mixture", [(1, 0, 0), (0, 1, 0), (0.4, 0.3, 0.3), (0, 0, 1)])
def test_whole_tables_give_the_coverage_that_their_mean_squares_do(mixture):
    seed, item, residual = mixture
    sources = {"seed": seed, "item": item, "residual": residual}
    tables = crossed_tables(np.random.default_rng(4), num_tables=10_000, seeds=3, items=80, **sources)
    drawn = estimated_effects(np.random.default_rng(5), mixture, seeds=3, items=80, num_tables=40_000)
    assert coverage(paired_effect(tables)) == pytest.approx(coverage(drawn), abs=0.007)


def test_seeds_that_agree_to_the_last_digit_do_not_give_an_interval_without_width():
    tables = np.random.default_rng(10).normal(size=(50, 3, 40))
    effect = paired_effect(tables - tables.mean(axis=2, keepdims=True))
    np.testing.assert_allclose(effect.seed_variance, 0.0, atol=1e-12)
    assert (effect.upper(0.975) > 0.4 * np.sqrt(effect.item_variance)).all()


def test_right_and_wrong_answers_on_items_of_all_difficulties_are_covered_too():
    """No normal numbers: an item's difficulty and a seed's skill make the chance of a right answer."""
    rng = np.random.default_rng(9)
    difficulty = rng.uniform(0.1, 0.9, size=(2000, 1, 200))
    baseline, candidate = (
        rng.random((2000, 4, 200)) < np.clip(difficulty + 0.04 * rng.normal(size=(2000, 4, 1)), 0, 1) for _ in range(2)
    )
    differences = candidate.astype(float) - baseline
    assert 0.93 <= coverage(paired_effect(differences)) <= 0.97


def test_the_pair_is_the_whole_of_what_the_baselines_scores_can_tell_of_the_same_items():
    """CUPED's covariate needs a mean that is known beyond the sample. Centred on the items that were asked it
    moves no mean, and an error that takes its residuals for the luck of items covers too little."""
    rng, num_tables, num_items = np.random.default_rng(0), 2000, 300
    hard = rng.beta(2, 2, (num_tables, num_items))
    baseline, candidate = (rng.random(hard.shape) < chance for chance in (hard, np.minimum(hard + 0.1, 1.0)))
    differences = candidate.astype(float) - baseline
    known = baseline - baseline.mean(axis=1, keepdims=True)
    slopes = (known * differences).sum(axis=1) / np.square(known).sum(axis=1)
    adjusted = differences - slopes[:, None] * known
    np.testing.assert_allclose(adjusted.mean(axis=1), differences.mean(axis=1), atol=1e-12)
    everywhere = np.random.default_rng(1).beta(2, 2, 2_000_000)
    truth = np.mean(np.minimum(everywhere + 0.1, 1.0) - everywhere)
    covered = {
        name: np.mean(np.abs(effect.mean(axis=1) - truth) < 1.96 * effect.std(axis=1, ddof=1) / np.sqrt(num_items))
        for name, effect in (("pair", differences), ("adjusted", adjusted))
    }
    assert 0.93 < covered["pair"] < 0.97
    assert covered["adjusted"] < 0.90


def test_items_of_one_passage_count_as_one_draw():
    tables = crossed_tables(
        np.random.default_rng(3), num_tables=3000, seeds=4, items=200, seed=0.2, item=0.8, cluster_size=5
    )
    passages = np.repeat(np.arange(40), 5)
    assert 0.93 <= coverage(paired_effect(tables, passages)) <= 0.97
    assert coverage(paired_effect(tables)) < 0.85


@pytest.mark.parametrize("largest", [1, 24, 60])
def test_items_of_passages_of_unequal_length_are_covered(largest):
    """The first passage has so many of the questions, the other thirty two each."""
    rng, passages = np.random.default_rng(8), np.repeat(np.arange(31), [largest, *[2] * 30])
    common = rng.normal(size=(3000, 1, 31))[..., passages]
    tables = common + 0.5 * rng.normal(size=(3000, 1, passages.size)) + 0.1 * rng.normal(size=(3000, 4, 1))
    found = paired_effect(tables, passages)
    assert coverage(found) >= 0.94
    assert float(found.item_degrees) < (30 if largest == 1 else 13)


def test_a_composite_knows_no_more_of_its_luck_than_the_benchmark_that_has_most_of_it():
    rng, seeds = np.random.default_rng(9), 0.01 * np.random.default_rng(10).normal(size=(2000, 3, 1))
    passages = np.repeat(np.arange(6), 10)
    tables = {
        "passages": rng.normal(size=(2000, 1, 6))[..., passages] + seeds,
        "singles": 0.1 * rng.normal(size=(2000, 1, 500)) + seeds,
    }
    clusters = {"passages": passages, "singles": np.arange(500)}
    found = breadth(tables, clusters).composite
    assert np.median(found.item_degrees) < 6
    assert 0.94 <= coverage(found) <= 0.97


def test_the_variance_has_the_terms_of_its_formula():
    table = np.random.default_rng(5).normal(size=(4, 30))
    effect = paired_effect(table)
    by_seed, by_item = table.mean(axis=1), table.mean(axis=0)
    residuals = table - by_seed[:, None] - by_item + table.mean()
    assert effect.seed_variance == pytest.approx(by_seed.var(ddof=1) / 4)
    assert effect.item_variance == pytest.approx(by_item.var(ddof=1) / 30)
    assert effect.residual_variance == pytest.approx((residuals**2).sum() / (3 * 29) / 120)


@given(table=TABLES, weight=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_an_item_that_counts_twice_is_two_items_of_one_cluster(table, weight):
    weights = np.ones(table.shape[1])
    weights[0] = weight
    copies = weights.astype(int)
    weighted = paired_effect(table, np.arange(table.shape[1]), weights)
    repeated = paired_effect(table.repeat(copies, axis=1), np.arange(table.shape[1]).repeat(copies))
    np.testing.assert_allclose(weighted.mean, repeated.mean, atol=1e-9)
    np.testing.assert_allclose(weighted.variance, repeated.variance, atol=1e-9)
    np.testing.assert_allclose(weighted.item_degrees, repeated.item_degrees)


@given(table=TABLES.filter(np.any))
@settings(max_examples=60, deadline=None)
def test_exchanging_baseline_and_candidate_mirrors_the_interval(table):
    forward, backward = estimate_of(paired_effect(table)), estimate_of(paired_effect(-table))
    np.testing.assert_allclose(
        [backward.low, backward.value, backward.high], [-forward.high, -forward.value, -forward.low], atol=1e-12
    )


@given(table=TABLES, rng=st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_seeds_and_items_does_not_matter(table, rng):
    seeds, items = list(range(table.shape[0])), list(range(table.shape[1]))
    rng.shuffle(seeds)
    rng.shuffle(items)
    clusters = np.array([item // 2 for item in range(table.shape[1])])
    before = paired_effect(table, clusters)
    after = paired_effect(table[seeds][:, items], clusters[items])
    np.testing.assert_allclose(before.variance, after.variance, atol=1e-12)


def test_many_comparisons_at_once_are_each_alone():
    tables = np.random.default_rng(6).normal(size=(3, 2, 4, 20))
    together = paired_effect(tables)
    for index in np.ndindex(3, 2):
        alone = estimate_of(paired_effect(tables[index]))
        parts = [np.asarray(part)[index] if np.ndim(part) else part for part in together]
        one = Effect._make(parts)
        assert estimate_of(one).low == pytest.approx(alone.low)


def test_scores_that_never_differ_do_not_say_by_how_much_others_could():
    """Of shares one more item bounds it; of other scores nothing does."""
    nothing = np.zeros((3, 20))
    estimate = estimate_of(paired_effect(nothing, largest=np.inf))
    assert (estimate.low, estimate.value, estimate.high) == (None, 0.0, None)
    assert estimate.method.endswith("undefined, no row differs")
    of_shares = estimate_of(paired_effect(nothing, largest=1.0))
    assert of_shares.low is not None and of_shares.low < -1.0 / 20.0


def test_no_bound_lies_beyond_what_a_mean_can_differ_by():
    """Two seeds of four items that differ by a whole mark: normal theory would say by 167 points or more."""
    wide = paired_effect(np.array([[1.0, -1.0, 1.0, 0.0], [0.0, 0.0, -1.0, 0.0]]), largest=1.0)
    assert float(wide.upper(0.99)) > 1.0
    effect = wide._replace(limit=1.0)
    estimate = estimate_of(effect)
    assert (estimate.low, estimate.high) == (-1.0, 1.0)
    assert (float(effect.lower(0.99)), float(effect.upper(0.99))) == (-1.0, 1.0)
    one_seed = paired_effect(np.ones((1, 4)))._replace(limit=1.0)
    assert estimate_of(one_seed).low is None and float(one_seed.lower(0.95)) == -np.inf


def test_one_seed_has_no_interval_that_speaks_of_a_method():
    effect = paired_effect(np.random.default_rng(8).normal(size=(1, 500)) + 10.0)
    assert estimate_of(effect).low is None
    assert "one seed" in estimate_of(effect).method
    assert effect.lower(0.6) == -np.inf


def test_weights_must_be_one_for_each_item():
    with pytest.raises(DataError, match=r"weights of shape \(3,\) for 10 items"):
        paired_effect(np.zeros((2, 10)), weights=np.ones(3))
