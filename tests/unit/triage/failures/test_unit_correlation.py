"""How alike the attempts of a unit end, and what each of them then counts."""

from types import SimpleNamespace

import numpy as np
import pytest

from assay.triage.failures.unit_correlation import fit_correlation


def table(sizes: list[int], failed: list[int]) -> SimpleNamespace:
    """A row for each unit."""
    return SimpleNamespace(
        units=np.arange(len(sizes)), attempts=np.array(sizes, float), failures=np.array(failed, float)
    )


def test_units_that_fail_as_a_whole_weigh_one_each() -> None:
    units = table([1, 4, 4, 16, 16, 16], [0, 4, 0, 16, 0, 0])
    correlation, weights = fit_correlation(units, np.array([0.35, 1.4, 1.4, 5.6, 5.6, 5.6]))
    assert correlation > 0.9
    sizes = np.array([1, 4, 4, 16, 16, 16])
    np.testing.assert_allclose(weights, 1.0 / (1.0 + (sizes - 1.0) * correlation))
    np.testing.assert_allclose(sizes * weights, 1.0, atol=0.1)


def test_attempts_that_have_nothing_in_common_weigh_one_each() -> None:
    rng = np.random.default_rng(0)
    sizes = np.full(400, 5)
    correlation, weights = fit_correlation(table(list(sizes), list(rng.binomial(5, 0.1, 400))), np.full(400, 0.5))
    assert correlation == pytest.approx(0.0, abs=0.05)
    assert weights.min() > 0.8
