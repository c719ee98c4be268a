"""The scope that is offered, and what drives its risk."""

import numpy as np
import pytest

from assay.base.errors import ConfigError
from assay.planning.simulation.drivers import register, tornado
from assay.planning.simulation.greedy_schedule import greedy_schedule
from assay.planning.simulation.information import ladder, seeds_table, stages_information
from assay.planning.simulation.offer import make_offer, offered_program, program_with
from assay.planning.simulation.outcome import safety_of, simulate
from assay.planning.simulation.scope import ReliabilityTargets, choose_scope, moves_of


def test_a_program_that_keeps_its_promises_gives_nothing_up(small):
    choice = choose_scope(small, ReliabilityTargets(0.5, 0.5), num_samples=500)
    assert choice.meets_targets
    assert choice.moves == ()


def test_what_breaks_the_budget_is_dropped_and_nothing_else(small):
    tight = small.changed({"budget.device_hours": 720.0})
    choice = choose_scope(tight, ReliabilityTargets(0.5, 0.05), num_samples=500)
    assert choice.meets_targets
    assert [move.name for move in choice.moves] == ["no_extra"]


def test_what_the_program_could_do_without_is_left_out_where_no_option_says_so(small):
    tight = small.changed({"budget.device_hours": 720.0, "options": {}, "activities.extra.optional": True})
    choice = choose_scope(tight, ReliabilityTargets(0.5, 0.05), num_samples=500)
    assert choice.meets_targets
    (move,) = choice.moves
    assert (move.name, move.gives_up) == ("without extra", "Extra")
    assert "extra" not in choice.program.activities
    own = small.changed({"activities.extra.optional": True})
    assert list(moves_of(own)) == ["no_extra", "late: ask"], "the option says what that gives up"


def test_a_promise_that_no_scope_keeps_is_said_to_be_broken(small):
    choice = choose_scope(small.changed({"decision.by": "week 1 day 3"}), num_samples=300)
    assert not choice.meets_targets


@pytest.mark.slow
def test_the_shipped_case_is_offered_safely_and_its_calm_optimum_is_not(shipped):
    offered = make_offer(shipped, num_samples=8_000)
    offer = offered.offer
    assert all(result.proved for result in offer.plan.objective_results)
    assert offer.safety.p_on_time >= 0.85
    assert offer.safety.p_over_budget <= 0.02
    assert offer.meets_targets
    assert offer.baseline_safety.p_on_time < 0.7
    assert offer.baseline_safety.p_over_budget > 0.02
    assert offered_program(shipped, offer) == offered.program
    with pytest.raises(ConfigError, match="has changed since the offer"):
        offered_program(shipped.changed({"budget.device_hours": 17_000.0}), offer)


def test_an_option_that_is_not_there_is_named(small):
    with pytest.raises(ConfigError, match="no option 'no_extras'; it has: no_extra, late: ask"):
        program_with(small, ("no_extras",))


def test_the_register_knows_what_a_risk_costs_and_that_a_mitigation_helps(small):
    tight = small.changed({"decision.by": "week 2 day 5"})
    (line,) = register(tight, greedy_schedule, num_samples=2000)
    assert line.without.p_on_time > line.now.p_on_time + 0.02
    assert line.cost() > 0
    assert line.now.p_on_time < line.mitigations[0].after.p_on_time <= line.without.p_on_time


def test_the_tornado_is_sorted_and_its_ends_are_on_their_sides(small):
    tight = small.changed({"decision.by": "week 2 day 5"})
    drivers = tornado(tight, greedy_schedule(tight), num_samples=1000)
    swings = [driver.swing() for driver in drivers]
    assert swings == sorted(swings, reverse=True)
    late = next(driver for driver in drivers if driver.name == "late")
    assert late.low.p_on_time > late.high.p_on_time


def test_a_gate_teaches_and_saves_what_it_stops(small):
    outcome = simulate(small, greedy_schedule(small), num_samples=5000)
    before, gate = stages_information(outcome)
    assert gate.p_wrong < before.p_wrong - 0.02
    assert gate.points_secured > before.points_secured
    # What is saved is what stopped programs would have spent on the one activity behind the gate.
    extra = outcome.compiled.network.index("extra")
    spent_where_done = outcome.replay.held_h[extra][outcome.verdict == "scale"].mean() * 16
    assert gate.device_hours_saved == pytest.approx(gate.p_stop * spent_where_done, rel=0.1)


def test_more_seeds_err_less_and_cost_more(small):
    lines = seeds_table(small, greedy_schedule(small), (1, 2, 4), num_samples=1000)
    assert np.all(np.diff([line.standard_error for line in lines]) < 0)
    assert np.all(np.diff([line.p_wrong for line in lines]) < 0.01)
    assert np.all(np.diff([line.safety.device_hours.p50 for line in lines]) > 0)
    assert [line.num_more for line in lines] == [-1, 0, 2]


def test_seeds_are_weighed_by_how_often_the_program_scales(shipped):
    baseline = greedy_schedule(shipped)
    fewer, now, more = seeds_table(shipped, baseline, (3, 4, 5), num_samples=1000)
    p_scale = simulate(shipped, baseline, num_samples=1000).shares()["scale"]
    scales = [line.safety.verdicts["scale"] for line in (fewer, now, more)]
    assert scales[1] == pytest.approx(p_scale, abs=1e-9)
    assert scales[0] + 0.02 < scales[1] < scales[2] - 0.02


def test_the_seeds_of_today_have_the_figures_of_the_plan_and_the_others_its_changes(shipped):
    baseline = greedy_schedule(shipped)
    known = safety_of(simulate(shipped, baseline, num_samples=2000))
    counts = (3, 4, 5)
    alone, anchored = (seeds_table(shipped, baseline, counts, num_samples=500, known=value) for value in (None, known))
    assert anchored[1].safety == known
    for own, moved in zip(alone, anchored, strict=True):
        change = own.safety.p_over_budget - alone[1].safety.p_over_budget
        assert moved.safety.p_over_budget == pytest.approx(max(0.0, known.p_over_budget + change))
        assert sum(moved.safety.verdicts.values()) == pytest.approx(1.0)


def test_the_seeds_that_would_be_enough_are_among_those_that_are_tried(shipped):
    lines = seeds_table(shipped, greedy_schedule(shipped), num_samples=200)
    enough = [line for line in lines if line.power >= 0.5]
    assert [line.num_seeds for line in lines] == [2, 3, 4, 5, 6, 9] and enough == lines[-1:]


def test_the_ladder_holds_the_rungs_of_one_comparison_in_time(shipped):
    rungs = ladder(simulate(shipped, greedy_schedule(shipped), num_samples=500))
    assert [rung.activity for rung in rungs] == ["ladder_small", "replicate", "ladder_medium", "confirm"]
    assert rungs[0].device_hours < rungs[1].device_hours
    assert rungs[0].device_hours_saved > rungs[-1].device_hours_saved
