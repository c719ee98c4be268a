"""Changes are found where they were planted, and nobody is blamed on a record that cannot tell."""

from collections import Counter

import numpy as np
import pytest

from assay.records.slow_changes import SlowChanges
from assay.reporting.views.triage_statements import next_text
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


@pytest.mark.parametrize("number", [20, *slow(400)])
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


def test_a_change_amid_the_runs_of_one_code_and_a_drift_are_no_code_s_fault():
    rng, runs = np.random.default_rng(0), np.arange(200)
    code = (runs // 20).astype(str).tolist()
    for levels in (0.01 * (runs >= 90), 0.04 * runs / 200):
        changes = explained(np.exp(levels + rng.normal(0, 0.002, 200)), code=code).changes
        assert changes and {change.verdict for change in changes} == {"unexplained"}


def test_a_driver_that_half_of_the_hosts_get_first_is_to_blame_with_its_own_effect():
    rng, runs = np.random.default_rng(0), np.arange(200)
    driver = (runs >= 140) | ((runs >= 60) & (runs % 2 == 0))
    values = np.exp(0.02 * driver + rng.normal(0, 0.002, 200))
    code = np.searchsorted([50, 100, 150], runs, side="right").astype(str).tolist()
    changes = explained(values, code=code, driver=np.where(driver, "b", "a").tolist(), host=(runs % 2).astype(str))
    first, second = changes.changes
    assert abs(first.index - 60) <= 1 and abs(second.index - 140) <= 1
    assert all([*change.assigned] == ["driver"] and abs(change.ratio - 1.02) < 0.002 for change in (first, second))


def test_a_change_on_one_model_alone_has_that_model_s_ratio():
    rng, runs = np.random.default_rng(0), np.arange(160)
    model = rng.integers(2, size=160)
    values = np.exp(0.3 * model + 0.006 * ((runs >= 80) & (model == 1)) + rng.normal(0, 0.001, 160))
    code = np.where(runs >= 80, "b", "a").tolist()
    (change,) = explained(values, code=code, gpu=model.astype(str).tolist()).changes
    assert abs(change.index - 80) <= 2 and [*change.assigned] == ["code"] and abs(change.ratio - 1.006) < 0.001


def test_factors_that_changed_together_are_not_told_apart_and_the_cost_of_doing_so_is_told():
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(0, 0.01, 80))
    values[40:] *= 1.1
    factors = {"code": ["a"] * 40 + ["b"] * 40, "driver": ["1"] * 40 + ["2"] * 40}
    at, hours = tuple(str(row) for row in range(80)), np.full(80, 1.5)
    series = MeasuredSeries("s", values, at, factors, {}, {}, hours)
    (change,) = explain_changes(series, least=0.005).changes
    assert (change.verdict, change.assigned) == ("unidentifiable", {})
    assert change.device_hours_needed == 1.5 * change.runs_needed
    assert next_text(change) == "3 runs of code=b with driver=1: 4.5 device-hours."


def test_two_changes_close_together_are_two():
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(0, 0.001, 80))
    values[40:44] *= 1.02
    values[44:] *= 1.05
    code = ["a"] * 40 + ["b"] * 4 + ["c"] * 36
    found = explained(values, code=code, driver=["1"] * 44 + ["2"] * 36).changes
    assert [(change.index, change.verdict) for change in found] == [(40, "assigned"), (44, "unidentifiable")]


def test_a_change_where_a_factor_changes_needs_less_evidence():
    rng, found = np.random.default_rng(0), Counter[str]()
    for _ in range(40):
        values = np.exp(rng.normal(0, 0.005, 60))
        values[30:] *= 1.0048
        recorded = explained(values, code=["a"] * 30 + ["b"] * 30, user=["u"] * 60).changes
        found["with"] += [change.index for change in recorded] == [30]
        found["without"] += bool(explained(values, user=["u"] * 60).changes)
    assert found["with"] >= 20 and found["with"] >= 1.7 * found["without"]


def test_hosts_with_speeds_of_their_own_do_not_hide_a_change():
    rng = np.random.default_rng(0)
    host = rng.integers(8, size=120)
    values = np.exp(rng.normal(0, 0.002, 120)) * (1.0 + 0.01 * host)
    values[60:] *= 1.01
    factors = {"host": host.astype(str).tolist(), "code": ["a"] * 60 + ["b"] * 60}
    (change,) = explained(values, **factors).changes
    assert (change.index, [*change.assigned]) == (60, ["code"])
    assert change.low < 1.01 < change.high and change.high - change.low < 0.005


def test_effects_of_crossed_factors_are_those_before_the_level_changed_for_another_reason():
    rng = np.random.default_rng(0)
    is_trial = (np.arange(120) < 30) & (np.arange(120) % 5 == 0)
    values = np.exp(rng.normal(0, 0.001, 120))
    is_new = (np.arange(120) >= 30) | is_trial
    values *= 1.03**is_new
    values[30:] *= 1.02
    values[50:] *= 1.05
    driver = np.where(is_new, "2", "1").tolist()
    first, second = explained(values, code=["a"] * 30 + ["b"] * 90, driver=driver).changes
    assert (first.index, second.index, second.verdict) == (30, 50, "unexplained")
    assert first.assigned == pytest.approx({"code": 1.02, "driver": 1.03}, abs=0.002)


def test_noise_that_is_larger_for_a_while_is_no_change():
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(40):
        values = np.exp(rng.normal(0, np.repeat([0.001, 0.01, 0.001], 50)))
        alarms += bool(explained(values, code=["a"] * 150).changes)
    assert alarms <= 2
