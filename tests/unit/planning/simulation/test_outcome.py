"""The shipped case and a small program, played: agreement with the plain simulation, stability, speed."""

import numpy as np
import pytest

from assay.planning.problem import compile_problem
from assay.planning.schedule import schedule
from assay.planning.simulation.compile import compile_program
from assay.planning.simulation.greedy_schedule import greedy_schedule
from assay.planning.simulation.offer import baseline_of
from assay.planning.simulation.outcome import baseline_replay, safety_of, simulate, simulate_many, simulate_samples
from assay.planning.simulation.sampling import sample_program


@pytest.fixture(scope="module")
def offered(shipped):
    """The scope that is offered for the shipped case (see test_scope), on a quick schedule."""
    program = shipped.with_options(["data_beside", "memo_beside", "three_seeds"])
    return program, greedy_schedule(program)


@pytest.mark.slow
def test_the_shipped_case_agrees_with_a_plain_simulation_of_each_program(offered, plain_replay):
    compiled = compile_program(*offered)
    samples = sample_program(compiled, num_samples=40, seed=3)
    outcome = simulate_samples(compiled, samples)
    devices = [item.devices for item in compiled.items]
    decision = compiled.network.names[compiled.network.decision]
    for program in range(40):
        plain = plain_replay(compiled.network, samples.replay_samples, program)
        spent = sum(d * held for d, (_, _, held) in zip(devices, plain.values(), strict=True))
        assert spent == pytest.approx(outcome.device_hours[program])
        assert plain[decision][1] == pytest.approx(outcome.decision_h[program])


def assert_stable(program, baseline, seeds):
    """Every quantile that is printed, to 1%; shares to half a point."""
    found = [safety_of(simulate(program, baseline, seed=seed)) for seed in seeds]
    for batch in zip(*map(quantiles, found), strict=True):
        assert max(batch) - min(batch) <= 0.01 * min(batch), batch
    for shares in zip(
        *([safety.p_on_time, safety.p_over_budget, *safety.verdicts.values()] for safety in found), strict=True
    ):
        assert np.ptp(shares) <= 0.01, shares


def quantiles(safety):
    spreads = (safety.decision_day, safety.device_hours, *safety.by_verdict.values())
    return [value for sampler in spreads for value in vars(sampler).values()]


@pytest.mark.slow
def test_quantiles_are_stable_to_one_percent_across_ten_seeds(small):
    assert_stable(small, greedy_schedule(small), range(10))


@pytest.mark.soak
@pytest.mark.parametrize("options", [(), ("data_beside", "memo_beside", "three_seeds")])
def test_the_shipped_cases_quantiles_are_stable_to_one_percent_across_twelve_seeds(shipped, options):
    program = shipped.with_options(options)
    assert_stable(program, baseline_of(schedule(program)), range(12))


def test_the_calm_replay_of_an_optimal_plan_is_that_plan(small):
    plan = schedule(small)
    compiled = compile_program(small, baseline_of(plan))
    baseline_replayed = baseline_replay(compiled)
    assert baseline_replayed.finish_h[compiled.network.decision, 0] == plan.decision_h
    assert (np.array([item.devices for item in compiled.items]) @ baseline_replayed.held_h)[0] == plan.device_hours


def test_keeping_the_calendar_begins_nothing_early(small):
    plan = schedule(small)
    compiled = compile_program(small, baseline_of(plan), keeps_calendar=True)
    outcome = simulate_samples(compiled, sample_program(compiled, num_samples=200))
    for index, item in enumerate(compiled.items):
        if item.kind in ("work", "run", "gate") and not item.repeat:
            starts = outcome.replay.start_h[index]
            assert np.nanmin(starts, initial=np.inf) >= plan.item(item.node).start_h


def test_a_stopped_program_spends_nothing_on_what_comes_after_the_gate(small):
    outcome = simulate(small, greedy_schedule(small), num_samples=2000)
    extra = outcome.compiled.network.index("extra")
    stopped = outcome.verdict == "stop"
    assert 0.02 < stopped.mean() < 0.3
    assert not outcome.replay.held_h[extra][stopped].any()
    assert not np.isnan(outcome.decision_h[stopped]).any()


def test_a_narrowed_program_drops_what_the_gate_drops(small):
    outcome = simulate(small, greedy_schedule(small), num_samples=2000)
    extra = outcome.compiled.network.index("extra")
    narrowed = outcome.verdict == "narrow"
    assert narrowed.any()
    assert not outcome.replay.held_h[extra][narrowed].any()
    assert outcome.replay.held_h[extra][outcome.verdict == "scale"].all()


def test_a_gate_that_asks_again_pays_for_its_repeats(small):
    outcome = simulate(small, greedy_schedule(small), num_samples=2000)
    is_repeated = outcome.samples.gates["gate"][0].verdict == "again"
    repeated = [i for i, item in enumerate(outcome.compiled.items) if item.node == "runs" and item.repeat]
    held = outcome.replay.held_h[repeated].sum(axis=0)
    assert 0.05 < is_repeated.mean() < 0.5
    assert (held[is_repeated] > 0).all()
    assert not held[~is_repeated].any()


def test_what_is_repeated_together_may_begin_beside_several_runs(small):
    """A repeat that counts from the start of its runs finds the repeated runs."""
    watch = {"title": "Watch", "stage": "one", "work": {"days": 1.0, "people": {"engineer": 1.0}}}
    executor = small.changed(
        {
            "activities.watch": watch | {"after": [{"name": "runs", "of": "start", "lag_hours": 2}]},
            "gates.gate.after": ["runs", "watch"],
            "gates.gate.again.activities": ["runs", "watch"],
        }
    )
    replay = simulate(executor, greedy_schedule(executor), num_samples=500)
    again, runs = (replay.compiled.network.index(name) for name in ("watch~1", "runs~1#1"))
    starts = replay.replay.start_h
    is_repeated = replay.samples.gates["gate"][0].verdict == "again"
    assert is_repeated.any()
    assert (starts[again] - starts[runs])[is_repeated].min() >= 2.0


def test_a_named_person_who_is_away_is_missed_by_the_role_too(small):
    """Two engineers do the work of two; while one of them, Ada, is away nobody can."""
    ada = {"fte": 1, "part_of": "engineer", "away": [{"since": "week 1", "until": "end of week 2"}]}
    work = {"days": 1.0, "people": {"engineer": 2.0}}
    program = small.changed({"team.ada": ada, "activities.prepare.work": work})
    plan = schedule(program)
    compiled = compile_program(program, baseline_of(plan))
    prepare = compiled.network.index("prepare")
    assert plan.item("prepare").start_h >= 2 * 168
    assert baseline_replay(compiled).finish_h[prepare, 0] == plan.item("prepare").end_h


def test_a_risk_with_the_name_of_a_booking_is_not_the_booking(small):
    booking = {"share": 1.0, "since": "week 1", "until": "end of week 1"}
    effect = {"type": "capacity_lost", "share": 0.5, "days": [1, 1, 1]}
    risk = {"title": "Half is down", "probability": 0.0, "owner": "lead", "effect": effect}
    program = small.changed({"capacity.bookings.half": booking, "risks.half": risk})
    outcome = simulate(program, greedy_schedule(program), num_samples=100)
    first = outcome.compiled.network.index("runs#1")
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
    assert [mode.demands["array:runs"] for mode in runs.modes] == [4]
    plan = schedule(program)
    replay = baseline_replay(compile_program(program, baseline_of(plan)))
    network = compile_program(program, baseline_of(plan)).network
    ends = sorted(replay.finish_h[network.index(f"runs#{run}"), 0] for run in (1, 2))
    assert ends[1] - ends[0] == 30  # one after the other: two at once would hold a fifth of all 40
    assert ends[1] == plan.item("runs").end_h


def test_what_is_played_together_or_taken_over_is_what_would_be_played_alone(small):
    """Changes of luck alone, of nothing at all, and of the work: bit for bit."""
    baseline = greedy_schedule(small)
    changes = [{}, {"risks.late.probability": 0.0}, {"noise.run_sigma": 0.5}, {"activities.runs.runs.count": 6}]
    programs = [small.changed(change) for change in changes]
    now = simulate(small, baseline, num_samples=300)
    batch = ((program, baseline) for program in programs)
    for program, found in zip(programs, simulate_many(batch, num_samples=300, known=[now]), strict=True):
        alone = simulate(program, baseline, num_samples=300)
        for field in ("decision_h", "device_hours", "verdict"):
            np.testing.assert_array_equal(getattr(found, field), getattr(alone, field))
        for ours, other in zip(found.replay, alone.replay, strict=True):
            np.testing.assert_array_equal(ours, other)
