"""A comparison that is looked at after every block: how often it is wrong, what it finds, and where it ends."""

import math

import numpy as np
import pytest

from assay.reporting.views.triage_statements import because_text, next_text
from assay.triage.slow.blocks import (
    BlockComparison,
    BlockRules,
    CountedSteps,
    MeasuredBlock,
    block_of,
    blocks_to_decide,
    compare,
    effect_of,
    phase_differences,
    side_by_side,
)
from variants import slow

RULES = BlockRules(least=0.03, error=0.05, most_blocks=40)
PLAN = {"steps": 40, "warm_up": 10, "workers": 1, "apart": False}


def simulated(rng, *, change: float, noise: float, rules: BlockRules = RULES) -> BlockComparison:
    """Blocks of a machine whose noise is normal, B slower by `change`."""

    def measure() -> MeasuredBlock:
        ratio = math.log1p(change) + rng.normal(0.0, noise)
        return MeasuredBlock(ratio, {"compute": 1.0}, {"compute": math.exp(ratio)}, 60.0)

    return compare(measure, rules)


@pytest.mark.parametrize("number", [200, *slow(2_000)])
@pytest.mark.parametrize("noise", [0.01, 0.04])
def test_equals_are_told_apart_in_at_most_five_percent_though_looked_at_after_each_block(number, noise):
    rng = np.random.default_rng(0)
    verdicts = [simulated(rng, change=0.0, noise=noise).verdict for _ in range(number)]
    assert sum(verdict in ("slower", "faster") for verdict in verdicts) <= 0.05 * number
    assert noise > 0.01 or verdicts.count("same") >= 0.99 * number


@pytest.mark.parametrize("number", [200, *slow(2_000)])
def test_the_interval_holds_at_all_looks_at_once_for_all_of_a_long_series(number):
    """Of series that never stop early, at most 5% leave the truth out at any look."""
    rng, left_out = np.random.default_rng(1), 0
    for _ in range(number):
        values = rng.normal(0.7, 0.2, 60)
        effects = [effect_of(values[:count], error=0.05) for count in range(1, 61)]
        left_out += any(not effect.low <= 0.7 <= effect.high for effect in effects)
    assert left_out <= 0.05 * number, left_out
    assert left_out > 0.005 * number, "an interval that is never wrong is too wide"


@pytest.mark.parametrize(("change", "verdict"), [(0.05, "slower"), (-0.05, "faster")])
def test_five_percent_are_found(change, verdict):
    rng = np.random.default_rng(2)
    found = [simulated(rng, change=change, noise=0.03) for _ in range(200)]
    assert sum(comparison.verdict == verdict for comparison in found) >= 0.98 * 200
    assert np.median([len(comparison.blocks) for comparison in found]) <= 14
    assert (
        sum(comparison.effect.low <= math.log1p(change) <= comparison.effect.high for comparison in found) >= 0.95 * 200
    )


def test_what_is_too_small_to_matter_is_called_the_same_and_what_cannot_be_told_undecided():
    rng = np.random.default_rng(3)
    small = [simulated(rng, change=0.005, noise=0.01).verdict for _ in range(100)]
    assert small.count("same") >= 95
    found = simulated(rng, change=0.0, noise=0.2, rules=RULES._replace(most_blocks=6))
    assert (found.verdict, len(found.blocks)) == ("undecided", 6)


def test_what_surely_differs_but_by_less_than_the_least_is_no_change():
    rng = np.random.default_rng(9)
    found = [simulated(rng, change=0.02, noise=0.002).verdict for _ in range(100)]
    assert set(found) == {"same"}


def test_the_chance_of_error_is_shared_out_among_phases():
    blocks = [
        MeasuredBlock(0.0, {"a": 1.0, "b": 1.0}, {"a": 1.0 + value, "b": 1.0}, 1.0) for value in (0.1, 0.2, 0.3, 0.4)
    ]
    phase_changes = phase_differences(blocks, error=0.05)
    expected = effect_of([0.1, 0.2, 0.3, 0.4], error=0.025)
    found = phase_changes["a"]
    assert (found.difference_s, found.low_s, found.high_s) == pytest.approx(tuple(expected))
    assert np.isfinite(expected.low)


def test_a_budget_ends_it_before_the_block_that_would_exceed_it_but_one_block_is_made():
    rng = np.random.default_rng(4)
    for budget_s, blocks in ((299.0, 4), (300.0, 5), (1.0, 1)):
        found = simulated(rng, change=0.0, noise=0.2, rules=RULES._replace(budget_s=budget_s))
        assert (found.verdict, len(found.blocks)) == ("undecided", blocks)


def test_the_number_of_blocks_that_would_decide_does():
    rng = np.random.default_rng(5)
    found = simulated(rng, change=0.0, noise=0.04, rules=RULES._replace(most_blocks=8))
    number = blocks_to_decide(found.effect, found.noise(), RULES)
    assert number is not None and number > 8
    again = rng.normal(0.0, 1.0, number)
    again = found.effect.mean + found.noise() * (again - again.mean()) / again.std(ddof=1)
    assert max(abs(end) for end in effect_of(again, error=0.05)[1:]) < math.log1p(0.03)
    assert blocks_to_decide(found.effect._replace(mean=math.log1p(0.03)), 0.0, RULES) == 4


def test_steps_are_compared_with_themselves_and_a_spike_is_clipped():
    """Long and short rows in turn; the sides did not count the same steps."""
    lengths = np.tile([1.0, 9.0], 20)
    rng = np.random.default_rng(6)
    a = CountedSteps(tuple(range(30)), {"compute": lengths[:30] * np.exp(rng.normal(0, 0.01, 30))})
    b_s = 1.05 * lengths[10:40] * np.exp(rng.normal(0, 0.01, 30))
    b_s[3] *= 50.0
    block = block_of(a, CountedSteps(tuple(range(10, 40)), {"compute": b_s}), device_s=7.0)
    assert block.log_ratio == pytest.approx(math.log(1.05), abs=0.01)
    assert block.a_s["compute"] == pytest.approx(a.phases["compute"][10:].mean())
    assert block.device_s == 7.0


def test_a_cost_in_every_tenth_step_is_no_spike_where_nothing_else_varies():
    often = np.where(np.arange(40) % 10, 1.0, 3.0)
    a = CountedSteps(tuple(range(40)), {"data": np.ones(40)})
    block = block_of(a, CountedSteps(tuple(range(40)), {"data": often}), device_s=1.0)
    assert block.log_ratio == pytest.approx(math.log(3.0) / 10)


def test_the_phase_that_grew_is_named_though_another_varies_more():
    rng, blocks = np.random.default_rng(7), []
    for _ in range(12):
        drift = rng.normal(0.0, 0.02)
        a_s = {"data": 0.1 + rng.normal(0, 0.001), "compute": 1.0 + drift}
        b_s = {"data": 0.2 + rng.normal(0, 0.001), "compute": 1.0 + drift + rng.normal(0, 0.01)}
        blocks.append(MeasuredBlock(math.log(sum(b_s.values()) / sum(a_s.values())), a_s, b_s, 60.0))
    found = compare(iter(blocks).__next__, RULES)
    phase_changes = phase_differences(found.blocks, error=0.05)
    assert phase_changes["data"].low_s > 0.09
    assert phase_changes["compute"].low_s < 0.0 < phase_changes["compute"].high_s
    record = side_by_side(found, RULES, what="commits", a="a", b="b", plan=PLAN, sources={})
    assert (record.verdict, record.phase) == ("slower", "data")
    because = because_text(record)
    assert "% longer" in because and "data most, 0.2" in because
    assert record.ratio == pytest.approx(1.2 / 1.1, rel=0.02)
    assert record.device_hours == pytest.approx(len(record.blocks) / 60.0)


def test_an_undecided_record_says_what_would_decide_and_one_block_says_nothing():
    rng = np.random.default_rng(8)
    rules = RULES._replace(most_blocks=8)
    found = simulated(rng, change=0.0, noise=0.04, rules=rules)
    record = side_by_side(found, rules, what="datasets", a="a", b="b", plan=PLAN, sources={})
    assert (record.verdict, record.phase) == ("undecided", None)
    assert "--most-blocks" in next_text(record) and "is certain yet" in because_text(record)
    one = simulated(rng, change=0.5, noise=0.0, rules=RULES._replace(most_blocks=1))
    record = side_by_side(one, rules, what="datasets", a="a", b="b", plan=PLAN, sources={})
    assert (record.verdict, record.low, record.high, record.noise) == ("undecided", None, None, None)
    assert record.ratio == pytest.approx(1.5)
