"""A plan from today keeps what happened, and moves the rest as little as it must."""

from collections.abc import Callable
from functools import partial

import pytest

from assay.base.errors import ConfigError
from assay.planning.explain import critical_chain, prices
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.program.progress import Actual, Progress
from assay.planning.replan import known_program, replan, replan_earliest
from assay.planning.schedule import InfeasibleError, schedule


def moved(before: Plan, after: Plan) -> set[str]:
    return {item.name for item in before.items if after.item(item.name).start_h != item.start_h}


def as_planned(program: Program, plan: Plan, *names: str) -> dict[str, Actual]:
    """These activities began and ended when the plan said."""
    items, date_of = map(plan.item, names), program.calendar.date_of
    return {
        item.name: Actual(started=date_of(item.start_h).isoformat(), ended=date_of(item.end_h).isoformat())
        for item in items
    }


@pytest.mark.slow
def test_when_all_goes_as_planned_nothing_moves(case: Program, case_plan: Plan) -> None:
    now = "week 2"
    in_progress = {
        item.name: Actual(
            started=case.calendar.date_of(item.start_h).isoformat(),
            ended=case.calendar.date_of(item.end_h).isoformat() if item.end_h <= 168 else None,
            device_hours=item.device_hours(),
        )
        for item in case_plan.items
        if item.start_h < 168
    }
    after = replan(case, case_plan, Progress(now=now, activities=in_progress))
    assert moved(case_plan, after) == set()
    assert after.decision_h == case_plan.decision_h
    assert after.is_proved()


@pytest.mark.parametrize("count", [2, 6])
def test_of_several_runs_none_moves_where_nothing_has_to(small_program: Callable[..., Program], count: int) -> None:
    """A night of slack before the memo is no reason to move one of them, and to lengthen them all by it."""
    room = {"capacity.devices": 48, "budget.device_hours": 3000.0}
    program = small_program(**{"activities.train.runs.count": count, **room})
    before = schedule(program)
    in_progress = as_planned(program, before, "prepare")
    after = replan(program, before, Progress(now="2027-01-05T17:00", activities=in_progress))
    assert next(result.value for result in after.objective_results if result.name == "changes_h") == 0
    assert after.item("train") == before.item("train")


def test_a_delay_moves_what_waits_for_it_and_nothing_before_now(small_program: Callable[..., Program]) -> None:
    program = small_program()
    before = schedule(program)
    progress = Progress(
        now="week 1 day 4",
        activities={"prepare": Actual(started="2027-01-04T09:00", ended="2027-01-06T17:00")},
    )
    after = replan(program, before, progress)
    assert after.item("prepare").end_h == 2 * 24 + 17
    assert after.item("train").start_h >= 3 * 24
    assert moved(before, after) == {"train", "memo"}


def test_what_only_today_holds_back_says_so(small_program: Callable[..., Program]) -> None:
    program = small_program()
    progress = Progress(
        now="week 1 day 4",
        activities={"prepare": Actual(started="2027-01-04T09:00", ended="2027-01-05T17:00")},
    )
    after = replan(program, schedule(program), progress)
    last = critical_chain(program, after, now_h=3 * 24)[-1]
    assert (last.name, last.reason, last.because) == ("train", "now", "")


def test_slack_takes_up_a_delay_before_the_decision_moves(small_program: Callable[..., Program]) -> None:
    """The run ends on a weekend; a few hours more move nothing that people do."""
    program = small_program(**{"activities.prepare.work": {"days": 4, "people": {"engineer": 1}}})
    before = schedule(program)
    progress = Progress(
        now="week 1 day 5",
        activities={"prepare": Actual(started="2027-01-04T09:00", ended="2027-01-08T00:00")},
    )
    after = replan(program, before, progress)
    assert after.decision_h == before.decision_h
    assert moved(before, after) == {"train"}


def test_what_was_spent_is_gone(small_program: Callable[..., Program]) -> None:
    program = small_program()
    before = schedule(program)
    spent = Actual(started="2027-01-04T09:00", ended="2027-01-05T17:00", device_hours=700)
    message = r"700 device-hours are spent by what .* would fit without one of: budget.device_hours \("
    with pytest.raises(InfeasibleError, match=message):
        replan(program, before, Progress(now="week 1 day 3", activities={"prepare": spent}))


def test_what_can_no_longer_be_in_time_fits_no_schedule(small_program: Callable[..., Program]) -> None:
    """Not a solver that ran out of time: more time would not help."""
    program = small_program(**{"activities.prepare.due": "week 1 day 4"})
    before = schedule(program)
    with pytest.raises(
        InfeasibleError, match=r"From week 2 on no schedule .* without one of: activities.prepare.due \("
    ):
        replan(program, before, Progress(now="week 2", activities={}))


def test_progress_that_does_not_belong_is_refused(small_program: Callable[..., Program]) -> None:
    program = small_program()
    before = schedule(program)
    with pytest.raises(ConfigError, match="'small'; perhaps you meant 'prepare'"):
        replan(program, before, Progress(now="week 2", activities={"prepar": Actual(started="week 1")}))
    with pytest.raises(ConfigError, match="lies after now"):
        replan(program, before, Progress(now="week 1", activities={"prepare": Actual(started="week 2")}))


def test_what_comes_later_than_stated_is_waited_for(small_program: Callable[..., Program]) -> None:
    program = small_program()
    before = schedule(program)
    after = replan(program, before, Progress(now="week 1 day 2", events={"data": "week 2"}))
    assert after.item("prepare").start_h == 168 + 9
    assert after.decision_h > before.decision_h


def test_once_begun_a_limit_is_worth_what_it_does_to_the_rest(small_program: Callable[..., Program]) -> None:
    """Two ways to use a second engineer; one is over, so at most the other is still for sale."""
    program = small_program(
        **{
            "activities.second": small_program().activities["prepare"].model_dump(mode="json"),
            "activities.train.after": ["prepare", "second"],
        }
    )
    before = schedule(program)

    def priced(progress: Progress) -> dict[str, int | None]:
        known = known_program(program, progress)
        rest = partial(replan_earliest, before=before, progress=progress)
        found = prices(known, rest(known), rest, now_h=program.calendar.hour_of(progress.now))
        return {price.title: price.decision_change_h for price in found}

    anew = {price.title: price.decision_change_h for price in prices(program, before, schedule)}
    assert anew["one more of engineer"] == -96, "two days of work, and the weekend behind them"
    assert anew["Data: three days late"] == 72
    first, last = sorted(("prepare", "second"), key=lambda name: before.item(name).start_h)
    one_over = as_planned(program, before, first)
    in_progress = priced(Progress(now="week 1 day 3", activities=one_over))
    assert in_progress["one more of engineer"] == 0, "the work of two days ago is not shared any more"
    assert "Data: three days late" not in in_progress, "it has come"
    finished = as_planned(program, before, first, last)
    assert priced(Progress(now="week 1 day 5", activities=finished))["one more of engineer"] == 0
    by_now = Progress(now="week 1 day 1", activities={}, events={"data": "week 1 day 3"})
    assert priced(by_now)["Data: three days early"] == -48, "it is still to come, today at the earliest"


def test_the_earliest_rest_is_no_later_than_the_plan_that_moves_least(
    small_program: Callable[..., Program],
) -> None:
    program = small_program()
    before = schedule(small_program(**{"events.data.at": "week 1 day 4"}))
    progress = Progress(now="week 1 day 1", activities={}, events={"data": "week 1 day 1"})
    again, earliest = (
        replan(program, before, progress),
        replan_earliest(known_program(program, progress), before, progress),
    )
    assert again.decision_h == before.decision_h, "an earlier date alone moves nobody"
    assert earliest.decision_h == schedule(program).decision_h < again.decision_h


def test_what_a_gate_has_dropped_is_not_planned_and_nobody_waits_for_it(gated: Program) -> None:
    before = schedule(gated)
    in_progress = as_planned(gated, before, "prepare", "look")
    now = gated.calendar.date_of(before.item("look").end_h).isoformat()
    narrowed = replan(gated, before, Progress(now=now, activities=in_progress, verdicts={"look": ["narrow"]}))
    stopped = replan(gated, before, Progress(now=now, activities=in_progress, verdicts={"look": ["stop"]}))
    assert {item.name for item in before.items} - {item.name for item in narrowed.items} == {"train"}
    assert {item.name for item in stopped.items} == {"prepare", "look", "memo"}
    assert stopped.device_hours == 0
    after_stop = known_program(gated, Progress(now=now, activities=in_progress, verdicts={"look": ["stop"]}))
    assert after_stop.activities["memo"].after == (), "it waits for the data of what is not done"
    with pytest.raises(ConfigError, match="asked to repeat prepare"):
        replan(gated, before, Progress(now=now, activities=in_progress, verdicts={"look": ["again"]}))


@pytest.fixture
def gated(small_program: Callable[..., Program]) -> Program:
    """prepare, look, train, late_train (on late data), memo."""
    mode = {"modes": [{"devices": 8, "hours": 20}]}
    gate = {
        "title": "Look",
        "stage": "one",
        "after": ["prepare"],
        "probabilities": {"pass": 0.4, "narrow": 0.3, "again": 0.2, "stop": 0.1},
        "narrow": {"drops": ["train"]},
        "again": {"activities": ["prepare"]},
        "stop_goes_to": ["memo"],
    }
    late = {"title": "Late", "stage": "one", "after": ["train", "more_data"], "runs": mode}
    return small_program(
        **{
            "gates.look": gate,
            "events.more_data": {"title": "More data", "at": "week 1 day 6"},
            "activities.train.after": ["look"],
            "activities.train.runs": {"modes": [{"devices": 8, "hours": 100}]},
            "activities.late": late,
            "activities.memo.after": ["late"],
        }
    )


def test_runs_whose_hours_nobody_noted_are_not_free(small_program: Callable[..., Program]) -> None:
    """480 device-hours were planned, and 480 more do not fit into 900."""
    again = {
        "title": "Again",
        "stage": "one",
        "after": ["train"],
        "runs": {"modes": [{"devices": 8, "hours": 60}]},
    }
    program = small_program(**{"activities.again": again, "activities.memo.after": ["again"]})
    before = schedule(program)
    in_progress = as_planned(program, before, "prepare", "train")
    after = replan(program, before, Progress(now="week 1 day 7", activities=in_progress))
    assert after.device_hours == before.device_hours == 960
    with pytest.raises(InfeasibleError):
        replan(
            program.changed({"budget.device_hours": 900}),
            before,
            Progress(now="week 1 day 7", activities=in_progress),
        )
