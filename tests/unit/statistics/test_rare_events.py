"""Items that hardly differ, or differ by very much, leave open what was not seen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay.statistics.composite import breadth
from assay.statistics.effect import paired_effect

MARKS = arrays(np.float64, st.tuples(st.integers(2, 4), st.integers(2, 8)), elements=st.sampled_from([-1.0, 0.0, 1.0]))


def covered(tables, truth, **how):
    effect = paired_effect(tables, **how)
    return np.mean((effect.lower(0.975) <= truth + 1e-12) & (effect.upper(0.975) >= truth - 1e-12))


def right_or_wrong(rng, *, tables, seeds, items, worse, better, alike=True):
    noise = rng.random((tables, 1 if alike else seeds, items))
    found = (noise < better).astype(float) - (noise > 1.0 - worse)
    return np.broadcast_to(found, (tables, seeds, items))


@pytest.mark.parametrize("items", [20, 100, 2000])
def test_where_no_item_differs_the_bound_is_clopper_and_pearsons_or_hardly_wider(items):
    effect = paired_effect(np.zeros((3, items)), largest=1.0)
    exact = 1.0 - 0.025 ** (1.0 / items)
    for bound in (float(effect.upper(0.975)), -float(effect.lower(0.975))):
        assert exact <= bound <= 1.5 * exact + 1.0 / items
    assert float(paired_effect(np.zeros((3, items))).upper(0.975)) == 0.0, "by what was seen there is no doubt"


@pytest.mark.parametrize(
    ("items", "worse", "better"), [(50, 0.01, 0.0), (100, 0.01, 0.0), (100, 0.1, 0.0), (20, 0.1, 0.1)]
)
def test_right_and_wrong_answers_that_hardly_differ_are_covered(items, worse, better):
    rng = np.random.default_rng(1)
    tables = right_or_wrong(rng, tables=3000, seeds=3, items=items, worse=worse, better=better)
    assert covered(tables, better - worse, largest=1.0) >= 0.93
    if (worse, better) == (0.01, 0.0):
        assert covered(tables, better - worse) < 0.70


def test_skewed_items_are_covered_where_there_are_many():
    rng = np.random.default_rng(2)
    tables = np.exp(1.5 * rng.normal(size=(1500, 1, 500))) + 0.01 * rng.normal(size=(1500, 3, 1))
    assert covered(tables, np.exp(1.125), largest=np.inf) >= 0.93
    assert covered(tables, np.exp(1.125)) < 0.93


def test_of_normal_items_hardly_anything_changes():
    tables = np.random.default_rng(3).normal(size=(500, 4, 100))
    wide, seen = (paired_effect(tables, largest=largest).half_width(0.975) for largest in (np.inf, None))
    assert 1.0 <= np.median(wide / seen) <= 1.03


def outcomes_in_clusters(rng, *, tables, clusters, size, worse, alike):
    """Items of a cluster fail at a rate of its own, so that two of them correlate by `alike`."""
    shape = (tables, clusters)
    rates = np.full(shape, worse)
    if alike == 1.0:
        rates = (rng.random(shape) < worse).astype(float)
    elif alike:
        strength = (1.0 - alike) / alike
        rates = rng.beta(worse * strength, (1.0 - worse) * strength, shape)
    wrong = rng.random((tables, clusters * size)) < rates.repeat(size, axis=1)
    return -wrong.astype(float)[:, None, :].repeat(3, axis=1), np.arange(clusters).repeat(size)


@pytest.mark.parametrize("alike", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize(("clusters", "size", "worse"), [(20, 50, 0.1), (12, 30, 0.1), (30, 30, 0.01)])
def test_an_unseen_cluster_is_as_its_items_and_those_that_were_seen(clusters, size, worse, alike):
    rng = np.random.default_rng(6)
    tables, of = outcomes_in_clusters(rng, tables=1500, clusters=clusters, size=size, worse=worse, alike=alike)
    how = {"clusters": of, "weights": np.ones(of.size), "largest": 1.0}
    assert covered(tables, -worse, **how) >= 0.93


@pytest.mark.parametrize("worse", [0.01, 0.05])
def test_few_changed_items_in_unequal_clusters_are_covered_by_intervals_of_the_size_of_what_could_be_missed(worse):
    rng = np.random.default_rng(8)
    clusters = np.arange(70).repeat(1 + rng.poisson(0.7, size=70))
    how = {"clusters": clusters, "weights": np.ones(clusters.size), "largest": 1.0}
    tables = right_or_wrong(rng, tables=1500, seeds=3, items=clusters.size, worse=worse, better=0.0)
    assert covered(tables, -worse, **how) >= 0.93
    one = np.zeros((3, clusters.size))
    one[:, 0] = -1.0
    exact = 1.0 - 0.025 ** (1.0 / 40)  # of as many clusters as would weigh the same, and one changed
    assert float(paired_effect(one, **how).half_width(0.975)) < 1.5 * exact


def test_where_no_item_differs_a_whole_cluster_may():
    clusters = np.arange(20).repeat(10)
    found = paired_effect(np.zeros((3, 200)), clusters, np.ones(200), largest=1.0)
    assert float(found.upper(0.975)) > 1.0 - 0.025 ** (1.0 / 20)


@given(MARKS, st.sampled_from([1.0, np.inf]))
@settings(max_examples=60, deadline=None)
def test_what_was_not_seen_never_makes_it_surer(table, largest):
    clusters = np.arange(table.shape[1]) // 2
    for of in (None, clusters):
        seen, allowed = paired_effect(table, of), paired_effect(table, of, largest=largest)
        assert float(allowed.item_variance) >= float(seen.item_variance)
        assert float(allowed.item_degrees) <= float(seen.item_degrees)
        assert float(allowed.mean) == float(seen.mean)


def test_a_composite_allows_for_it_as_its_benchmarks_do():
    rng = np.random.default_rng(4)
    tables = {name: right_or_wrong(rng, tables=1, seeds=3, items=50, worse=0.02, better=0.1)[0] for name in "ab"}
    one = breadth({"a": tables["a"]}, largest={"a": 1.0}).composite
    alone = paired_effect(tables["a"], largest=1.0)
    assert float(one.item_variance) == pytest.approx(float(alone.item_variance))
    draws = {name: np.arange(50) for name in "ab"}
    twice = breadth({"a": tables["a"], "b": tables["a"]}, joint_clusters=draws, largest={"a": 1.0, "b": 1.0}).composite
    assert float(twice.item_variance) == pytest.approx(float(alone.item_variance))
    assert float(twice.item_degrees) == pytest.approx(float(alone.item_degrees))
    clusters = {name: np.arange(50) // 5 for name in "ab"}
    grouped = paired_effect(tables["a"], clusters["a"], np.ones(50), largest=1.0)
    doubled = breadth(
        {"a": tables["a"], "b": tables["a"]}, clusters, joint_clusters=clusters, largest={"a": 1.0, "b": 1.0}
    ).composite
    assert float(doubled.item_variance) == pytest.approx(float(grouped.item_variance)), "no more rows than one has"
    assert float(doubled.item_degrees) == pytest.approx(float(grouped.item_degrees))
    composite = breadth(tables, largest={"a": 1.0, "b": 1.0}).composite
    parts = [float(paired_effect(table, largest=1.0).item_variance) for table in tables.values()]
    assert float(composite.item_variance) == pytest.approx(sum(parts) / 4)
