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
    return explained(
        values, code=np.where(code, "b", "a").tolist(), machine=np.where(machine, "y", "x").tolist()
    )


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
        assert [each.verdict for each in fleet(rng, crossed=False).changes] == ["unidentifiable"]


def test_a_change_without_a_factor_is_unexplained_and_noise_is_none():
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(0, 0.01, 80))
    assert explained(values, code=["a"] * 80).changes == ()
    values[40:] *= 1.1
    (change,) = explained(values, code=["a"] * 80).changes
    assert (change.verdict, change.assigned, abs(change.index - 40) <= 1) == ("unexplained", {}, True)
