"""Questions have the answers that sense demands."""

from collections.abc import Callable
from typing import Any

import pytest

from assay.planning import what_if
from assay.planning.explain import prices
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.schedule import Effort, schedule, solve
from assay.planning.what_if import Solver, readings
from assay.reporting.document import Cell, TitledTable
from assay.reporting.documents.plan.schedule_documents import schedule_document

EFFORT = Effort(seconds=20, workers=1)


@pytest.mark.slow
def test_data_a_week_late_moves_the_decision_by_at_most_that(case: Program, case_plan: Plan) -> None:
    changes = case.what_ifs["data_week_late"].changes
    late = Solver(EFFORT).solve_changes(case, "", changes)
    assert late.plan is not None
    assert 0 < late.plan.decision_h - case_plan.decision_h <= 7 * 24


@pytest.mark.parametrize(
    ("rule", "is_better"),
    [
        ({"of": "total"}, False),
        ({"of": "available"}, False),
        ({"job": "activity"}, False),
        ({"segments": "chained"}, True),
    ],
)
def test_a_stricter_reading_never_helps_and_a_looser_one_never_hurts(
    small_program: Callable[..., Program], rule: dict[str, Any], is_better: bool
) -> None:
    changes = {
        "budget.device_hours": 5000,
        "activities.train.runs.modes": [{"devices": 10, "hours": 50}, {"devices": 5, "hours": 200}],
        "capacity.bookings.others": {"share": 0.4, "since": "week 1 day 4", "until": "week 4"},
    }
    base = {"share": 0.4, "max_hours": 24}
    plain = schedule(small_program(**changes, **{"capacity.fair_use": base}))
    other = schedule(small_program(**changes, **{"capacity.fair_use": base | rule}))
    if is_better:
        assert other.decision_h < plain.decision_h
        assert any(len(run.holds) > 1 for item in other.items for run in item.runs)
    else:
        assert other.decision_h >= plain.decision_h


def test_all_eight_readings_are_answered(small_program: Callable[..., Program]) -> None:
    program = small_program(**{"capacity.fair_use": {"share": 0.4}})
    found = readings(program, effort=EFFORT)
    assert len({item.title for item in found}) == 8
    assert readings(small_program()) == ()


def test_the_price_of_a_person_is_what_solving_with_one_more_gives(
    small_program: Callable[..., Program],
) -> None:
    program = small_program(**{"activities.memo.after": [], "decision.decided_by": "prepare", "team.engineer": 1})
    plan = schedule(program)
    price = next(item for item in prices(program, plan, schedule) if item.title == "one more of engineer")
    more = schedule(program.changed({"team.engineer.fte": 2}))
    assert price.decision_change_h == more.decision_h - plan.decision_h


@pytest.mark.slow
def test_what_changes_no_schedule_is_not_solved_again(monkeypatch: pytest.MonkeyPatch, case: Program) -> None:
    solved: list[Any] = []
    monkeypatch.setattr(what_if, "solve", lambda problem, **_: solved.append(problem) or solve(problem, **_))
    solver = Solver(EFFORT)
    first = solver.solve_changes(case, "now", {}).plan
    calmer = solver.solve_changes(case, "calmer", {"noise.rerun_probability": 0.0}).plan
    late = solver.solve_changes(case, "late", case.what_ifs["data_week_late"].changes).plan
    assert first is not None and calmer is not None and late is not None
    assert len(solved) == 2
    assert calmer.items == first.items
    assert calmer.program_sha256 != first.program_sha256
    assert late.decision_h > first.decision_h


def test_a_price_that_leaves_no_schedule_says_so_beside_the_others(
    small_program: Callable[..., Program],
) -> None:
    """Training is due so soon after the data that three days late is too late."""
    program = small_program(**{"activities.train.due": "week 1 day 6"})
    earliest = schedule(program)
    found = {price.title: price for price in prices(program, earliest, schedule)}
    assert found["Data: three days late"].decision_change_h is None
    assert found["5% more capacity"].decision_change_h == 0
    document = schedule_document(program, earliest, prices=(earliest, tuple(found.values())))
    block = document.sections[-1].blocks[0]
    assert isinstance(block, TitledTable)
    table = block.table
    shown = {row[0]: row[1] for row in table.rows}
    assert shown["Data: three days late"] == Cell("no schedule", "bad") and table.rows[-1][0] == "Data: three days late"
    assert shown["5% more capacity"] == "no change"
