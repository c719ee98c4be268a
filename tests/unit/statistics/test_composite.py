"""Several benchmarks: a composite, each left out in turn, and p-values that know how many there are."""

import numpy as np
import pytest

from assay.base.errors import DataError
from assay.statistics.composite import breadth
from assay.statistics.effect import paired_effect


def tables(rng, gains, *, seeds=5, items=300):
    seed_effect = 0.01 * rng.normal(size=(seeds, 1))
    return {f"b{i}": gain + seed_effect + 0.1 * rng.normal(size=(seeds, items)) for i, gain in enumerate(gains)}


def test_a_lucky_seed_is_lucky_on_all_benchmarks_so_more_of_them_do_not_help():
    rng = np.random.default_rng(1)
    seed_effect = 0.05 * rng.normal(size=(5, 1))
    found = breadth({f"b{i}": seed_effect + 0.01 * rng.normal(size=(5, 500)) for i in range(20)}).composite
    assert float(found.standard_error) == pytest.approx(seed_effect.std(ddof=1) / np.sqrt(5), rel=0.05)


def test_the_composites_interval_covers():
    rng = np.random.default_rng(2)
    seeds = rng.normal(size=(4000, 4, 1))
    found = breadth({f"b{i}": seeds + 5 * rng.normal(size=(4000, 1, 40)) for i in range(3)}).composite
    assert 0.93 <= np.mean((found.lower(0.975) < 0.0) & (found.upper(0.975) > 0.0)) <= 0.975


def test_a_gain_that_one_benchmark_carries_is_seen_when_it_is_left_out():
    found = breadth(tables(np.random.default_rng(3), [0.12, 0.0, 0.0, 0.0]))
    assert float(found.composite.mean) > 0.02
    assert found.least_without_one == pytest.approx(float(found.left_out["b0"].mean))
    assert found.least_without_one < 0.5 * float(found.composite.mean)


def test_a_benchmark_left_out_is_a_composite_of_the_rest():
    differences = tables(np.random.default_rng(4), [0.02, 0.03, 0.01])
    rest = {name: values for name, values in differences.items() if name != "b1"}
    assert breadth(differences).left_out["b1"] == breadth(rest).composite


def test_one_benchmark_alone_is_its_own_composite():
    differences = tables(np.random.default_rng(5), [0.02])
    found = breadth(differences)
    assert found.left_out == {}
    assert found.least_without_one == pytest.approx(float(paired_effect(differences["b0"]).mean))


def test_benchmarks_with_unequal_seeds_are_refused():
    with pytest.raises(DataError, match="a has 3, b has 2"):
        breadth({"a": np.zeros((3, 5)), "b": np.zeros((2, 5))})
