"""What a design could detect, held to the published formulas and to simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import nct
from scipy.stats import t as student_t

from assay.base.errors import ConfigError
from assay.evaluation.evidence.effect import Effect, paired_effect
from assay.evaluation.evidence.interval import ONE_SIDED
from assay.evaluation.evidence.power import (
    VarianceComponents,
    components_from_discordance,
    detectable_difference,
    minimum_detectable_effect,
    power,
    seeds_needed,
    variance_components,
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
    effect = minimum_detectable_effect(COMPONENTS, **design, wanted_power=0.9)
    assert float(power(effect, COMPONENTS, **design)) == pytest.approx(0.9, abs=1e-4)


def test_the_seeds_needed_are_the_fewest_that_suffice():
    count = seeds_needed(0.02, COMPONENTS, num_items=8000)
    powers = [float(power(0.02, COMPONENTS, num_seeds=n, num_items=8000)) for n in (count - 1, count)]
    assert powers[0] < 0.8 <= powers[1]


def test_no_number_of_seeds_makes_up_for_missing_items():
    assert seeds_needed(0.02, COMPONENTS, num_items=300) is None


def test_a_difference_above_the_discordance_is_beyond_any_benchmark():
    assert detectable_difference(10, discordance=0.1) == math.inf


def test_one_seed_detects_nothing():
    assert minimum_detectable_effect(COMPONENTS, num_seeds=1, num_items=10**6) == math.inf
    assert power(1.0, COMPONENTS, num_seeds=1, num_items=10**6) == 0.0


def test_components_are_recovered_from_records():
    rng = np.random.default_rng(1)
    found = []
    for _ in range(300):
        table = 0.02 * rng.normal(size=(6, 1)) + 0.3 * rng.normal(size=200) + 0.2 * rng.normal(size=(6, 200))
        found.append(variance_components(table))
    np.testing.assert_allclose(np.mean(found, axis=0), [4e-4, 0.09, 0.04, 0.0], rtol=0.1)


def test_clusters_raise_the_variance_of_an_item_by_the_design_effect():
    rng = np.random.default_rng(2)
    table = rng.normal(size=(3, 400)) + 5.0 * rng.normal(size=100).repeat(4)
    passages = np.arange(100).repeat(4)
    assert variance_components(table, passages).item > 3.0 * variance_components(table).item


def test_one_seed_can_not_tell_the_components_apart():
    with pytest.raises(ConfigError, match="1 seed x 50 items cannot tell seeds' luck from items'"):
        variance_components(np.zeros((1, 50)))


def test_a_pilots_two_numbers_give_its_standard_error():
    components = components_from_discordance(discordance=0.3, seed_sd=0.01)
    assert components.standard_error(num_seeds=1, num_items=2000) == pytest.approx(0.0187, abs=1e-4)


@pytest.mark.parametrize("margin", [0.02, 0.04])
def test_what_does_no_harm_passes_a_guardrail_as_often_as_a_gain_of_its_margin_is_found(margin):
    rng, count, seeds, items = np.random.default_rng(5), 40_000, 3, 2000
    by_seed = np.sqrt(COMPONENTS.seed + COMPONENTS.residual / items) * rng.normal(size=(count, seeds))
    luck = np.sqrt(COMPONENTS.item / items) * rng.normal(size=count)
    residual = COMPONENTS.residual / (seeds * items)
    harm = Effect(
        mean=by_seed.mean(axis=1) + luck,
        seed_variance=by_seed.var(axis=1, ddof=1) / seeds,
        item_variance=np.full(count, COMPONENTS.item / items + residual),
        residual_variance=np.full(count, residual),
        seed_degrees=np.full(count, seeds - 1.0),
        item_degrees=items - 1,
    )
    passes = np.mean(harm.upper(ONE_SIDED) < margin)
    assert float(power(margin, COMPONENTS, num_seeds=seeds, num_items=items)) == pytest.approx(
        passes, abs=0.015
    )
