"""The schedule is what the program allows, the best of it, and confirmed by somebody else."""

import itertools
from collections.abc import Callable

import pytest

from assay.planning.checker import plan_problems
from assay.planning.conflict import can_hold, find_conflict, limits_of
from assay.planning.explain import critical_chain
from assay.planning.program.checks import problems_of
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.schedule import Effort, InfeasibleError, schedule
from random_program import random_program
from variants import slow

EFFORT = Effort(seconds=90, workers=1)
"""Ample: the slowest of these programs is proved in a few seconds of an idle core."""


def test_the_shipped_case_is_proved_optimal_on_every_aim(case_plan: Plan) -> None:
    assert case_plan.is_proved()
    assert [result.name for result in case_plan.objective_results] == [
        "decision_h",
        "device_hours",
        "peak_devices",
    ]
    assert case_plan.decision_day() == 47
    assert case_plan.device_hours == 15_040


def test_the_shipped_case_is_confirmed_hour_by_hour(case: Program, case_plan: Plan) -> None:
    assert plan_problems(case, case_plan) == []


def test_the_critical_chain_is_unbroken_and_begins_with_the_data(case: Program, case_plan: Plan) -> None:
    chain = critical_chain(case, case_plan)
    assert chain[0].name == "recommend"
    assert chain[-1].because == "refreshed_data"
    assert all(later.start_h >= earlier.start_h for later, earlier in itertools.pairwise(chain))


def test_what_waits_for_the_least_peak_alone_says_so(small_program: Callable[..., Program]) -> None:
    """Both runs would fit overnight on the 20 devices; one after the other, they peak at 8 and are in time."""
    runs = {"count": 1, "modes": [{"devices": 8, "hours": 6}]}
    more = {"title": "More", "stage": "one", "after": ["prepare"], "runs": runs}
    changes = {
        "activities.train.runs": runs,
        "activities.more": more,
        "activities.memo.after": ["train", "more"],
    }
    program = small_program(**changes)
    plan = schedule(program, effort=EFFORT)
    assert plan.peak_devices == 8
    steps = critical_chain(program, plan)
    assert [step.reason for step in steps] == ["after", "least peak", "after", "event"]
    assert steps[1].because == steps[2].name
    scarce = program.changed({"capacity.devices": 15})
    steps = critical_chain(scarce, schedule(scarce, effort=EFFORT))
    assert [step.reason for step in steps] == ["after", "devices", "after", "event"]


def test_what_waits_for_somebody_who_is_away_says_so(small_program: Callable[..., Program]) -> None:
    away = [{"since": "week 1", "until": "week 1 day 2"}]
    program = small_program(**{"team.engineer": {"fte": 1, "away": away}})
    last = critical_chain(program, schedule(program, effort=EFFORT))[-1]
    assert (last.name, last.reason) == ("prepare", "away")


def test_what_waits_for_the_end_of_a_booking_says_so(small_program: Callable[..., Program]) -> None:
    """All devices are away until the third of them: neither a rule nor another activity holds it up."""
    booked = {"title": "Maintenance", "share": 1.0, "since": "week 1", "until": "week 2 day 3"}
    for rule in ({}, {"capacity.fair_use": {"share": 0.4}}):
        program = small_program(**{"capacity.bookings.maintenance": booked, **rule})
        (step,) = [item for item in critical_chain(program, schedule(program, effort=EFFORT)) if item.name == "train"]
        assert (step.reason, step.because) == ("booking", "Maintenance")
        assert step.start_h == program.calendar.hour_of("week 2 day 3")


def valid_program(seed: int) -> Program:
    """The first valid one that the generator makes from this seed on, in strides that no other seed shares."""
    sampled = (random_program(seed + 10_000 * stride) for stride in itertools.count())
    return next(program for program in sampled if not list(problems_of(program)))


def assert_conflict_is_real_and_minimal(program: Program, seed: int) -> None:
    conflict = find_conflict(program, effort=EFFORT)
    assert conflict is not None, f"seed {seed}"
    named = {member.key for member in conflict.members}
    others = {limit.key for limit in limits_of(program)} - named
    assert can_hold(program, others, EFFORT) is False, f"seed {seed}: the named limits alone do not clash"
    for key in named:
        assert can_hold(program, {*others, key}, EFFORT) is True, f"seed {seed}: {key} is not needed"


def check_random_program(program: Program, seed: int) -> None:
    try:
        plan = schedule(program, effort=EFFORT)
    except InfeasibleError:
        assert_conflict_is_real_and_minimal(program, seed)
        return
    assert plan.is_proved(), f"seed {seed}"
    assert plan_problems(program, plan) == [], f"seed {seed}"


@pytest.mark.parametrize("seed", [*range(8), *slow(*range(8, 30))])
def test_plans_of_random_programs_break_no_rule(seed: int) -> None:
    check_random_program(valid_program(seed), seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_plans_of_many_random_programs_break_no_rule(seed: int) -> None:
    check_random_program(valid_program(seed), seed)


@pytest.mark.parametrize("seed", range(40, 46))
def test_a_conflict_is_real_and_minimal(seed: int) -> None:
    """The decision a day after the start: almost nothing fits, and each named limit is needed for that."""
    program = valid_program(seed).changed({"decision.by": "week 1 day 3"})
    assert not list(problems_of(program)), "choose seeds whose programs are valid with this date, too"
    if find_conflict(program, effort=EFFORT) is not None:
        assert_conflict_is_real_and_minimal(program, seed)
        return
    plan = schedule(program, effort=EFFORT)
    assert plan_problems(program, plan) == []
    assert plan.decision_h <= program.calendar.hour_of(program.decision.by)
