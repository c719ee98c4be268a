"""What a design could detect, held to the published formulas and to simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import nct
from scipy.stats import t as student_t

from assay.statistics.effect import Effect, paired_effect
from assay.statistics.interval import ONE_SIDED
from assay.statistics.power import (
    VarianceComponents,
    components_from_discordance,
    detectable_by,
    detectable_difference,
    minimum_detectable_effect,
    power,
    seeds_needed,
)

COMPONENTS = VarianceComponents(seed=2e-4, item=0.2, residual=0.1)


@pytest.mark.parametrize(
    ("effect", "discordance", "items"),
    [(0.03, 0.3, 2609), (0.02, 0.3, 5879), (0.03, 0.15, 1301), (0.02, 0.15, 2936)],
)
def test_the_detectable_difference_of_two_models_is_mcnemars(effect, discordance, items):
    assert detectable_difference(items, discordance=discordance) <= effect
    assert detectable_difference(items - 1, discordance=discordance) > effect


def mcnemars_items(effect, discordance):
    return (1.959964 + 0.841621) ** 2 * (discordance - effect**2) / effect**2


@given(st.integers(50, 100_000), st.floats(0.05, 1.0))
@settings(max_examples=50, deadline=None)
def test_what_a_benchmark_could_find_needs_that_many_items(num_items, discordance):
    effect = detectable_difference(num_items, discordance=discordance)
    if math.isinf(effect):
        assert mcnemars_items(discordance, discordance) > num_items
        return
    assert mcnemars_items(effect, discordance) == pytest.approx(num_items, rel=1e-4)


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 10])
def test_where_only_seeds_vary_power_is_the_noncentral_t(num_seeds):
    effect = 0.03
    found = power(effect, VarianceComponents(4e-4, 0.0, 0.0), num_seeds=num_seeds, num_items=100)
    quantile = student_t.ppf(0.95, num_seeds - 1)
    exact = nct.sf(quantile, num_seeds - 1, effect / math.sqrt(4e-4 / num_seeds))
    assert float(found) == pytest.approx(exact, abs=0.005)


@pytest.mark.parametrize(("num_seeds", "effect"), [(2, 0.09), (2, 0.05), (3, 0.04), (5, 0.02)])
def test_power_is_what_a_simulation_finds(num_seeds, effect):
    rng = np.random.default_rng(0)
    shape = (6000, num_seeds, 100)
    components = VarianceComponents(seed=2e-4, item=0.01, residual=0.01)
    tables = effect + math.sqrt(2e-4) * rng.normal(size=(*shape[:2], 1))
    tables = tables + 0.1 * rng.normal(size=(shape[0], 1, shape[2])) + 0.1 * rng.normal(size=shape)
    found = np.mean(paired_effect(tables, largest=np.inf).lower(0.95) > 0.0)
    stated = float(power(effect, components, num_seeds=num_seeds, num_items=100))
    assert found - 0.025 <= stated <= found + 0.02


@pytest.mark.parametrize("num_seeds", [2, 3, 8])
def test_the_minimum_detectable_effect_has_the_wanted_power(num_seeds):
    design = {"num_seeds": num_seeds, "num_items": 4000}
    effect = minimum_detectable_effect(COMPONENTS, **design, target_power=0.9)
    assert float(power(effect, COMPONENTS, **design)) == pytest.approx(0.9, abs=1e-4)


def test_the_seeds_needed_are_the_fewest_that_suffice():
    count = seeds_needed(0.02, COMPONENTS, num_items=8000)
    powers = [float(power(0.02, COMPONENTS, num_seeds=n, num_items=8000)) for n in (count - 1, count)]
    assert powers[0] < 0.8 <= powers[1]


def test_no_number_of_seeds_makes_up_for_missing_items():
    assert seeds_needed(0.02, COMPONENTS, num_items=300) is None


def measured(rng, count, sizes, *, seeds, of_seed, of_cluster, of_item):
    """Paired differences without a gain: `count` tables of rows in clusters of these sizes."""
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    shape = (count, seeds, clusters.size)
    tables = of_seed * rng.normal(size=(count, seeds, 1)) + of_item * rng.normal(size=shape)
    return tables + of_cluster * rng.normal(size=(count, 1, len(sizes)))[..., clusters], clusters


@pytest.mark.parametrize(
    "sizes",
    [[4] * 40, [60, *[4] * 15], [200, *[3] * 21], [9] * 5],
    ids=["equal clusters", "a large one", "a giant", "five"],
)
def test_what_a_measurement_could_detect_is_found_as_often_by_others_of_its_kind(sizes):
    noise = {"seeds": 3, "of_seed": 0.01, "of_cluster": 0.05, "of_item": 0.1}
    tables, clusters = measured(np.random.default_rng(11), 3000, sizes, **noise)
    found = paired_effect(tables, clusters, np.ones(clusters.size))
    # The variances that the tables scatter about: nobody knows them from one table, and on average one does.
    typical = Effect(*map(np.mean, found[:-1]))
    gain = detectable_by(typical)
    assert np.mean(found.lower(0.95) + gain > 0.0) == pytest.approx(0.8, abs=0.04)
    # As its interval: a giant cluster leaves less than two degrees of freedom, and hardly any gain is seen.
    assert gain > 0.75 * float(typical.half_width(0.95))


def test_of_many_items_it_is_what_the_design_could_detect():
    tables, _ = measured(np.random.default_rng(3), 1, [1] * 3000, seeds=4, of_seed=0.01, of_cluster=0.3, of_item=0)
    effect = paired_effect(tables[0], None, np.ones(3000), largest=None)
    seed = float(effect.seed_variance) * 4
    design = VarianceComponents(seed=seed, item=float(effect.items_alone) * 3000, residual=0.0)
    assert detectable_by(effect) == pytest.approx(
        minimum_detectable_effect(design, num_seeds=4, num_items=3000), rel=0.02
    )


def test_nothing_is_detected_by_what_knows_nothing_of_its_luck():
    one_seed = paired_effect(np.random.default_rng(1).normal(size=(1, 50)))
    one_cluster = paired_effect(np.random.default_rng(1).normal(size=(3, 50)), np.zeros(50, int))
    assert detectable_by(one_seed) == detectable_by(one_cluster) == math.inf
    assert detectable_by(paired_effect(np.zeros((3, 50)))) == 0.0


def test_a_difference_above_the_discordance_is_beyond_any_benchmark():
    assert detectable_difference(10, discordance=0.1) == math.inf


def test_one_seed_detects_nothing():
    assert minimum_detectable_effect(COMPONENTS, num_seeds=1, num_items=10**6) == math.inf
    assert power(1.0, COMPONENTS, num_seeds=1, num_items=10**6) == 0.0


def test_a_pilots_two_numbers_give_its_standard_error():
    components = components_from_discordance(discordance=0.3, seed_sd=0.01)
    assert components.standard_error(num_seeds=1, num_items=2000) == pytest.approx(0.0187, abs=1e-4)


@pytest.mark.parametrize("margin", [0.02, 0.04])
def test_what_does_no_harm_passes_a_guardrail_as_often_as_a_gain_of_its_margin_is_found(margin):
    rng, count, seeds, items = np.random.default_rng(5), 40_000, 3, 2000
    by_seed = np.sqrt(COMPONENTS.seed + COMPONENTS.residual / items) * rng.normal(size=(count, seeds))
    noise = np.sqrt(COMPONENTS.item / items) * rng.normal(size=count)
    residual = COMPONENTS.residual / (seeds * items)
    harm = Effect(
        mean=by_seed.mean(axis=1) + noise,
        seed_variance=by_seed.var(axis=1, ddof=1) / seeds,
        item_variance=np.full(count, COMPONENTS.item / items + residual),
        residual_variance=np.full(count, residual),
        seed_degrees=np.full(count, seeds - 1.0),
        item_degrees=items - 1,
    )
    passes = np.mean(harm.upper(ONE_SIDED) < margin)
    assert float(power(margin, COMPONENTS, num_seeds=seeds, num_items=items)) == pytest.approx(passes, abs=0.015)
