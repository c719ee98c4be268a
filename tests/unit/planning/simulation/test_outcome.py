"""The shipped case and a small program, played: agreement with the plain simulation, stability, speed."""

import numpy as np
import pytest

from assay.planning.problem import compile_problem
from assay.planning.schedule import schedule
from assay.planning.simulation.compile import simulated
from assay.planning.simulation.greedy_schedule import sketch
from assay.planning.simulation.offer import baseline_of, safety_of
from assay.planning.simulation.outcome import calm_replay, play, simulate, simulate_each
from assay.planning.simulation.random_draws import draw_luck


@pytest.fixture(scope="module")
def offered(shipped):
    """The scope that is offered for the shipped case (see test_scope), on a quick schedule."""
    program = shipped.with_options(["data_beside", "memo_beside", "three_seeds"])
    return program, sketch(program)


@pytest.mark.slow
def test_the_shipped_case_agrees_with_a_plain_simulation_of_each_program(offered, plain_replay):
    compiled = simulated(*offered)
    luck = draw_luck(compiled, num_worlds=40, seed=3)
    outcome = play(compiled, luck)
    devices = [item.devices for item in compiled.items]
    decision = compiled.network.names[compiled.network.decision]
    for program in range(40):
        plain = plain_replay(compiled.network, luck.draws, program)
        spent = sum(d * held for d, (_, _, held) in zip(devices, plain.values(), strict=True))
        assert spent == pytest.approx(outcome.device_hours[program])
        assert plain[decision][1] == pytest.approx(outcome.decision_h[program])


def assert_stable(program, baseline, seeds):
    """Every quantile that is printed, to 1%; shares to half a point."""
    found = [safety_of(simulate(program, baseline, seed=seed)) for seed in seeds]
    for lots in zip(*map(quantiles, found), strict=True):
        assert max(lots) - min(lots) <= 0.01 * min(lots), lots
    for shares in zip(
        *([each.p_on_time, each.p_over_budget, *each.verdicts.values()] for each in found), strict=True
    ):
        assert np.ptp(shares) <= 0.01, shares


def quantiles(safety):
    spreads = (safety.decision_day, safety.device_hours, *safety.given.values())
    return [value for spread in spreads for value in vars(spread).values()]


@pytest.mark.slow
def test_quantiles_are_stable_to_one_percent_across_ten_seeds(small):
    assert_stable(small, sketch(small), range(10))


@pytest.mark.soak
@pytest.mark.parametrize("options", [(), ("data_beside", "memo_beside", "three_seeds")])
def test_the_shipped_cases_quantiles_are_stable_to_one_percent_across_twelve_seeds(shipped, options):
    program = shipped.with_options(options)
    assert_stable(program, baseline_of(schedule(program)), range(12))


def test_the_calm_replay_of_an_optimal_plan_is_that_plan(small):
    plan = schedule(small)
    compiled = simulated(small, baseline_of(plan))
    calm = calm_replay(compiled)
    assert calm.finish_h[compiled.network.decision, 0] == plan.decision_h
    assert (np.array([item.devices for item in compiled.items]) @ calm.held_h)[0] == plan.device_hours


def test_keeping_the_calendar_begins_nothing_early(small):
    plan = schedule(small)
    compiled = simulated(small, baseline_of(plan), keeps_calendar=True)
    outcome = play(compiled, draw_luck(compiled, num_worlds=200))
    for index, item in enumerate(compiled.items):
        if item.kind in ("work", "run", "gate") and not item.repeat:
            starts = outcome.replay.start_h[index]
            assert np.nanmin(starts, initial=np.inf) >= plan.item(item.node).start_h


def test_a_stopped_program_spends_nothing_on_what_comes_after_the_gate(small):
    outcome = simulate(small, sketch(small), num_worlds=2000)
    extra = outcome.simulated.network.index("extra")
    stopped = outcome.verdict == "stop"
    assert 0.02 < stopped.mean() < 0.3
    assert not outcome.replay.held_h[extra][stopped].any()
    assert not np.isnan(outcome.decision_h[stopped]).any()


def test_a_narrowed_program_drops_what_the_gate_drops(small):
    outcome = simulate(small, sketch(small), num_worlds=2000)
    extra = outcome.simulated.network.index("extra")
    narrowed = outcome.verdict == "narrow"
    assert narrowed.any()
    assert not outcome.replay.held_h[extra][narrowed].any()
    assert outcome.replay.held_h[extra][outcome.verdict == "scale"].all()


def test_a_gate_that_asks_again_pays_for_its_repeats(small):
    outcome = simulate(small, sketch(small), num_worlds=2000)
    asked = outcome.luck.gates["gate"][0].verdict == "again"
    repeats = [i for i, item in enumerate(outcome.simulated.items) if item.node == "runs" and item.repeat]
    held = outcome.replay.held_h[repeats].sum(axis=0)
    assert 0.05 < asked.mean() < 0.5
    assert (held[asked] > 0).all()
    assert not held[~asked].any()


def test_what_is_repeated_together_may_begin_beside_several_runs(small):
    """A repeat that counts from the start of its runs finds the repeated runs."""
    watch = {"title": "Watch", "stage": "one", "work": {"days": 1.0, "people": {"engineer": 1.0}}}
    beside = small.changed(
        {
            "activities.watch": watch | {"after": [{"name": "runs", "of": "start", "lag_hours": 2}]},
            "gates.gate.after": ["runs", "watch"],
            "gates.gate.again.repeats": ["runs", "watch"],
        }
    )
    replay = simulate(beside, sketch(beside), num_worlds=500)
    again, runs = (replay.simulated.network.index(name) for name in ("watch~1", "runs~1#1"))
    starts = replay.replay.start_h
    asked = replay.luck.gates["gate"][0].verdict == "again"
    assert asked.any()
    assert (starts[again] - starts[runs])[asked].min() >= 2.0


def test_a_named_person_who_is_away_is_missed_by_the_role_too(small):
    """Two engineers do the work of two; while one of them, Ada, is away nobody can."""
    ada = {"fte": 1, "part_of": "engineer", "away": [{"since": "week 1", "until": "end of week 2"}]}
    both = {"days": 1.0, "people": {"engineer": 2.0}}
    program = small.changed({"team.ada": ada, "activities.prepare.work": both})
    plan = schedule(program)
    compiled = simulated(program, baseline_of(plan))
    prepare = compiled.network.index("prepare")
    assert plan.item("prepare").start_h >= 2 * 168
    assert calm_replay(compiled).finish_h[prepare, 0] == plan.item("prepare").end_h


def test_a_risk_with_the_name_of_a_booking_is_not_the_booking(small):
    booking = {"share": 1.0, "since": "week 1", "until": "end of week 1"}
    effect = {"type": "capacity_lost", "share": 0.5, "days": [1, 1, 1]}
    risk = {"title": "Half is down", "probability": 0.0, "owner": "lead", "effect": effect}
    program = small.changed({"capacity.bookings.half": booking, "risks.half": risk})
    outcome = simulate(program, sketch(program), num_worlds=100)
    first = outcome.simulated.network.index("runs#1")
    assert outcome.replay.start_h[first].min() >= 168


def test_an_array_below_the_fair_share_of_what_is_free_is_as_large_as_in_the_schedule(small):
    """Half of 40 devices are booked in week 6, so an activity's runs may hold a fifth of 20, not of 40."""
    program = small.changed(
        {
            "capacity.devices": 40,
            "capacity.bookings": {"other": {"share": 0.5, "since": "week 6", "until": "end of week 6"}},
            "capacity.fair_use": {"of": "available", "job": "activity"},
            "activities.runs.runs": {"count": 2, "modes": [{"devices": 4, "hours": 30}]},
        }
    )
    (runs,) = [group for group in compile_problem(program).groups.values() if group.name == "runs"]
    assert [way.demands["array:runs"] for way in runs.ways] == [4]
    plan = schedule(program)
    replay = calm_replay(simulated(program, baseline_of(plan)))
    network = simulated(program, baseline_of(plan)).network
    ends = sorted(replay.finish_h[network.index(f"runs#{run}"), 0] for run in (1, 2))
    assert ends[1] - ends[0] == 30  # one after the other: two at once would hold a fifth of all 40
    assert ends[1] == plan.item("runs").end_h


def test_what_is_played_together_or_taken_over_is_what_would_be_played_alone(small):
    """Changes of luck alone, of nothing at all, and of the work: bit for bit."""
    baseline = sketch(small)
    changes = [{}, {"risks.late.probability": 0.0}, {"noise.run_sigma": 0.5}, {"activities.runs.runs.count": 6}]
    programs = [small.changed(change) for change in changes]
    now = simulate(small, baseline, num_worlds=300)
    lots = ((program, baseline) for program in programs)
    for program, found in zip(programs, simulate_each(lots, num_worlds=300, known=[now]), strict=True):
        alone = simulate(program, baseline, num_worlds=300)
        for field in ("decision_h", "device_hours", "verdict"):
            np.testing.assert_array_equal(getattr(found, field), getattr(alone, field))
        for ours, theirs in zip(found.replay, alone.replay, strict=True):
            np.testing.assert_array_equal(ours, theirs)
