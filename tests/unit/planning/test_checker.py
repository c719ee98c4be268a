"""The checker sees each kind of broken rule."""

from collections.abc import Callable
from typing import Any

import pytest

from assay.planning.checker import plan_problems
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.schedule import schedule

Make = Callable[..., Program]


def tampered(plan: Plan, name: str, **changes: Any) -> Plan:
    items = [item.model_copy(update=changes) if item.name == name else item for item in plan.items]
    return plan.model_copy(update={"items": tuple(items)})


def broken_rules(program: Program, plan: Plan) -> set[str]:
    return {violation.key for violation in plan_problems(program, plan)}


def held(plan: Plan, *holds: tuple[tuple[int, int], ...], devices: int = 8) -> Plan:
    runs = tuple(plan.item("train").runs[0].model_copy(update={"holds": h, "devices": devices}) for h in holds)
    start, end = min(h[0][0] for h in holds), max(h[-1][1] for h in holds)
    return tampered(plan, "train", runs=runs, start_h=start, end_h=end)


def test_a_plan_of_ours_breaks_nothing(small_program: Make) -> None:
    program = small_program()
    assert broken_rules(program, schedule(program)) == set()


def test_work_on_a_weekend_before_its_predecessor_and_too_short_is_seen(small_program: Make) -> None:
    program = small_program()
    plan = schedule(program)
    assert "prepare" in broken_rules(program, tampered(plan, "prepare", start_h=24 * 5 + 9))
    assert "train.after" in broken_rules(program, held(plan, ((0, 30),), ((0, 30),)))
    assert "prepare.days" in broken_rules(program, tampered(plan, "prepare", end_h=17))


def test_too_many_devices_people_and_device_hours_are_seen(small_program: Make) -> None:
    program = small_program()
    plan = schedule(program)
    later = plan.item("train").start_h
    twice = held(plan, ((later, later + 30),), ((later, later + 30),), devices=16)
    assert "capacity.devices" in broken_rules(program, twice)
    assert "train.devices" in broken_rules(program, twice)
    start, end = plan.item("prepare").start_h, plan.item("prepare").end_h
    assert "team.engineer" in broken_rules(program, tampered(plan, "memo", start_h=start, end_h=end))
    poor = small_program(**{"budget.device_hours": 400})
    assert "budget.device_hours" in broken_rules(poor, plan)
    assert "budget.stages.one" in broken_rules(small_program(**{"budget.stages": {"one": 400}}), plan)


@pytest.mark.parametrize(
    ("rule", "is_broken"),
    [
        ({"share": 0.2, "max_hours": 24}, True),
        ({"share": 0.4, "max_hours": 24}, False),
        ({"share": 0.4, "max_hours": 24, "job": "activity"}, True),
        ({"share": 0.2, "max_hours": 30}, False),
    ],
)
def test_the_fair_use_rule_is_read_as_it_says(small_program: Make, rule: dict[str, Any], is_broken: bool) -> None:
    """Two runs side by side, 8 of 20 devices each, for 30 hours."""
    plan = schedule(small_program())
    ruled = small_program(**{"capacity.fair_use": rule})
    assert ("capacity.fair_use" in broken_rules(ruled, plan)) == is_broken


def test_absence_bookings_dates_and_the_end_of_the_calendar_are_seen(small_program: Make) -> None:
    plan = schedule(small_program())
    away = {"since": "week 1", "until": "week 1 day 2"}
    for changes, rule in [
        ({"team.engineer.away": [away]}, "team.engineer"),
        ({"capacity.bookings.x": {"share": 0.9, "since": "week 1", "until": "week 3"}}, "capacity.devices"),
        ({"activities.memo.due": "week 1 day 2"}, "memo.due"),
        ({"activities.prepare.not_before": "week 2"}, "prepare.not_before"),
        ({"events.data.at": "week 2"}, "prepare.after"),
        ({"calendar.holidays": ["2027-01-04"]}, "prepare"),
    ]:
        assert rule in broken_rules(small_program(**changes), plan), changes


def test_figures_that_are_not_so_are_seen(small_program: Make) -> None:
    program = small_program()
    plan = schedule(program)
    for figure in ("decision_h", "device_hours", "peak_devices"):
        assert f"plan.{figure}" in broken_rules(program, plan.model_copy(update={figure: 1}))
    assert broken_rules(program, plan.model_copy(update={"items": plan.items[1:]})) == {"activities"}
