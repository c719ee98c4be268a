"""Where nothing fits, the limits that clash are named, and what would do is enough."""

from collections.abc import Callable

import pytest

from assay.planning.conflict import can_hold, conflict_error, find_conflict
from assay.planning.program.program import Program
from assay.planning.schedule import Effort
from random_program import random_program

EFFORT = Effort(seconds=120, workers=1)


@pytest.mark.slow
def test_the_case_two_weeks_early_clashes_with_the_date_of_its_data(case: Program) -> None:
    early = case.changed({"decision.by": "end of week 6"})
    conflict = find_conflict(early, effort=EFFORT)
    assert conflict is not None
    assert conflict.is_minimal
    assert [member.key for member in conflict.members] == ["events.refreshed_data.at", "decision.by"]
    assert conflict.members[1].fix == "end of day 47 (2027-02-19) would do"
    enough = early.changed({"decision.by": "2027-02-20"})  # the midnight that ends the 19th
    assert find_conflict(enough, effort=EFFORT) is None


def test_a_cure_by_people_devices_or_money_is_enough(small_program: Callable[..., Program]) -> None:
    """Two tasks of a day each for one engineer, on one day."""
    due = {"activities.memo.due": "week 1 day 2", "activities.memo.after": []}
    program = small_program(**due, **{"activities.prepare.due": "week 1 day 3"})
    conflict = find_conflict(program, effort=EFFORT)
    assert conflict is not None
    fixes = {member.key: member.fix for member in conflict.members}
    assert fixes["team.engineer"] == "1 more would do"
    assert find_conflict(program.changed({"team.engineer.fte": 2}), effort=EFFORT) is None
    assert fixes["activities.prepare.due"] == "end of day 3 (2027-01-06) would do"


def test_a_calendar_of_holidays_is_named_and_not_the_date_alone(small_program: Callable[..., Program]) -> None:
    days = [f"2027-01-{day:02d}" for day in range(4, 16)]
    program = small_program(**{"calendar.holidays": days})
    conflict = find_conflict(program, effort=EFFORT)
    assert conflict is not None
    fixes = {member.key: member.fix for member in conflict.members}
    assert set(fixes) == {"calendar.holidays", "decision.by"}
    assert fixes["calendar.holidays"] == "working from 2027-01-04 to 2027-01-09 would do"
    assert find_conflict(program.changed({"calendar.holidays": days[6:]}), effort=EFFORT) is None


def test_who_is_away_is_named_with_the_time_that_clashes(small_program: Callable[..., Program]) -> None:
    away = [{"since": "week 1", "until": "end of week 2"}]
    program = small_program(**{"team.engineer": {"fte": 1, "away": away}})
    conflict = find_conflict(program, effort=EFFORT)
    assert conflict is not None
    members = {member.key: member for member in conflict.members}
    assert set(members) == {"team.engineer", "team.engineer.away", "decision.by"}
    assert members["team.engineer.away"].demand == "engineer is away: week 1 until end of week 2"
    assert members["team.engineer.away"].fix == "being there from week 1 until end of week 2 would do"


def test_a_program_that_fits_has_no_conflict(case: Program) -> None:
    assert find_conflict(case, effort=EFFORT) is None


def test_where_no_single_concession_is_enough_the_sets_that_are_are_named(
    small_program: Callable[..., Program],
) -> None:
    """Two days of work by the end of the first, and 480 device-hours of 300: one has nothing to do with the
    other."""
    program = small_program(**{"activities.prepare.due": "week 1 day 2", "budget.device_hours": 300})
    conflict = find_conflict(program, effort=EFFORT)
    assert conflict is not None
    clashes = [{member.key for member in clash} for clash in (conflict.members, *conflict.others)]
    assert sorted(map(sorted, clashes)) == [["activities.prepare.due"], ["budget.device_hours"]]
    (mode,) = conflict.fixes
    assert dict(mode) == {
        "activities.prepare.due": "end of day 2 (2027-01-05) would do",
        "budget.device_hours": "480 would do",
    }
    enough = {"activities.prepare.due": "2027-01-06", "budget.device_hours": 480}
    assert find_conflict(program.changed(enough), effort=EFFORT) is None
    for key, value in enough.items():
        assert find_conflict(program.changed({key: value}), effort=EFFORT) is not None, "alone it is not enough"


@pytest.mark.slow
def test_every_way_out_that_is_named_is_one_and_none_of_it_can_be_spared() -> None:
    found = 0
    for seed in range(60):
        program = random_program(seed).changed({"budget.device_hours": 1, "budget.stages": {}})
        conflict = find_conflict(program, effort=Effort(seconds=5, workers=1))
        if conflict is None or not conflict.fixes:
            continue
        for mode in conflict.fixes:
            keys = [key for key, _ in mode]
            assert can_hold(program, keys, EFFORT)
            assert not any(can_hold(program, set(keys) - {key}, EFFORT) for key in keys)
        found += 1
        if found == 2:
            return
    raise AssertionError("no program with two clashes")


def test_the_error_says_on_which_to_give_way_together(small_program: Callable[..., Program]) -> None:
    program = small_program(**{"activities.prepare.due": "week 1 day 2", "budget.device_hours": 300})
    conflict = find_conflict(program, effort=EFFORT)
    assert conflict is not None
    text = str(conflict_error(lambda key: f"x.yaml:{len(key)}", conflict))
    assert "give way on one:" not in text
    assert "giving way on one is not enough" in text
    fix_text = text.partition("Give way on all of these:\n")[2]
    assert "x.yaml:22: activities.prepare.due: end of day 2 (2027-01-05) would do" in fix_text
    assert "budget.device_hours: 480 would do" in fix_text
