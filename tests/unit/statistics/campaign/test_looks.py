"""Looks are declared; whatever is looked at, the whole error stays what was planned."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import t as student_t

from assay.base.errors import ConfigError
from assay.statistics.campaign.looks import (
    LookPlan,
    take_look,
)


@pytest.mark.parametrize("gate_seeds", [(3, 5, 8), (2, 3), (4, 8, 12, 16)])
def test_gates_of_a_students_test_err_as_often_as_planned(gate_seeds):
    plan = LookPlan(gate_seeds=gate_seeds)
    draws = np.random.default_rng(1).normal(size=(60_000, gate_seeds[-1]))
    claimed = np.zeros(60_000, bool)
    for count, level in zip(gate_seeds, plan.gate_levels(), strict=True):
        seen = draws[:, :count]
        statistic = seen.mean(axis=1) / (seen.std(axis=1, ddof=1) / np.sqrt(count))
        claimed |= statistic > student_t.ppf(level, count - 1)
    assert claimed.mean() == pytest.approx(plan.gate_error_rate(), abs=0.003)


def test_gates_grow_milder_and_the_last_is_close_to_a_single_test():
    levels = LookPlan(gate_seeds=(3, 5, 8), error_rate=0.05, unscheduled_share=0.0).gate_levels()
    assert levels[0] > 0.995 > levels[1] > levels[2] > 0.95


@given(looks=st.lists(st.booleans(), max_size=40), share=st.floats(0.0, 0.9))
@settings(max_examples=40, deadline=None)
def test_no_sequence_of_looks_spends_more_than_the_error_rate(looks, share):
    plan = LookPlan(gate_seeds=(3, 5, 8), unscheduled_share=round(share, 1))
    past_looks, gates = [], list(plan.gate_seeds)
    for is_gate in looks:
        if is_gate and not gates:
            continue
        seeds = gates.pop(0) if is_gate else 2
        past_looks.append(take_look(plan, past_looks, name="look", num_seeds=seeds, is_gate=is_gate))
    assert sum(look.spent for look in past_looks) <= plan.error_rate + 1e-12
    assert not past_looks or past_looks[-1].spent_so_far == pytest.approx(sum(look.spent for look in past_looks))


def test_each_further_unscheduled_look_must_show_more():
    plan = LookPlan()
    levels = [1.0 - plan.unscheduled_spending(number) for number in range(1, 30)]
    assert levels == sorted(levels)
    assert levels[0] > 0.99


def test_a_gate_is_passed_once_and_only_if_declared():
    plan = LookPlan(gate_seeds=(3, 5))
    first = take_look(plan, [], name="G1", num_seeds=3, is_gate=True)
    with pytest.raises(ConfigError, match="gate at 3 seed pairs has been passed"):
        take_look(plan, [first], name="G1 again", num_seeds=3, is_gate=True)
    with pytest.raises(ConfigError, match=r"4 seed pairs was not declared \(declared: \[3, 5\]\)"):
        take_look(plan, [first], name="G2", num_seeds=4, is_gate=True)


@pytest.mark.parametrize("gate_seeds", [(), (1, 3), (3, 3), (5, 3)])
def test_gates_must_rise_from_two_seeds(gate_seeds):
    with pytest.raises(ValidationError, match="must rise from 2 or more"):
        LookPlan(gate_seeds=gate_seeds)
