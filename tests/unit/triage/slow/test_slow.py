"""Changes are found where they were planted, and nobody is blamed on a record that cannot tell."""

import numpy as np
import pytest

from assay.records.slow_changes import SlowChanges
from assay.triage.slow.explain import explain_changes
from assay.triage.slow.series import MeasuredSeries
from variants import slow


def explained(values, **factors) -> SlowChanges:
    at = tuple(str(row) for row in range(len(values)))
    return explain_changes(MeasuredSeries("s", values, at, factors, {}, {}), least=0.005)


def fleet(rng, *, crossed: bool) -> SlowChanges:
    """Code costs 5% and the machine 10%; every fourth run crosses, or none."""
    code = np.arange(80) >= 40
    machine = code ^ (np.arange(80) % 4 == 0) if crossed else code
    values = 1.05**code * 1.10**machine * np.exp(rng.normal(0, 0.01, 80))
    return explained(values, code=np.where(code, "b", "a").tolist(), machine=np.where(machine, "y", "x").tolist())


@pytest.mark.parametrize("number", [20, *slow(200)])
def test_crossed_effects_are_told_apart(number):
    rng, right = np.random.default_rng(0), 0
    for _ in range(number):
        (change, *_) = fleet(rng, crossed=True).changes
        found = change.assigned
        right += abs(found.get("code", 1) - 1.05) <= 0.01 and abs(found.get("machine", 1) - 1.10) <= 0.01
    assert right >= 0.95 * number


@pytest.mark.parametrize("number", [20, *slow(200)])
def test_nobody_is_blamed_where_runs_do_not_cross(number):
    rng = np.random.default_rng(0)
    for _ in range(number):
        assert [change.verdict for change in fleet(rng, crossed=False).changes] == ["unidentifiable"]


@pytest.mark.parametrize("number", [40, *slow(400)])
def test_a_factor_of_many_values_is_not_blamed_for_what_it_did_not_do(number):
    """Twenty runs on a pool of sixteen hosts share few hosts before and after a change, whatever made it."""
    rng, blamed = np.random.default_rng(0), 0
    for _ in range(number):
        before, after = rng.integers(8, 60, 2)
        values = np.exp(rng.normal(0, 0.01, before + after))
        values[before:] *= 1.2
        pools = {
            f"pool of {size}": rng.integers(size, size=len(values)).astype(str).tolist() for size in (2, 4, 16, 64)
        }
        blamed += any(change.verdict != "unexplained" for change in explained(values, **pools).changes)
    assert blamed <= 0.05 * number


def test_a_factor_whose_several_values_all_became_others_is_to_blame():
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(0, 0.01, 80))
    values[40:] *= 1.2
    hosts = [f"old{rng.integers(4)}" for _ in range(40)] + [f"new{rng.integers(4)}" for _ in range(40)]
    (change,) = explained(values, host=hosts, user=[f"u{rng.integers(30)}" for _ in range(80)]).changes
    assert (change.verdict, [*change.assigned]) == ("assigned", ["host"])


def test_a_change_without_a_factor_is_unexplained_and_noise_is_none():
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(0, 0.01, 80))
    assert explained(values, code=["a"] * 80).changes == ()
    values[40:] *= 1.1
    (change,) = explained(values, code=["a"] * 80).changes
    assert (change.verdict, change.assigned, abs(change.index - 40) <= 1) == ("unexplained", {}, True)
