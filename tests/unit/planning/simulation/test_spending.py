"""What is spent and what is left: re-planning, forecast and burn-down say the same of the same notes, and notes
move the forecast the way they should."""

import json
import random

import numpy as np
import pytest
from hypothesis import assume, example, given, reject, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError
from assay.planning.heuristic import first_schedule
from assay.planning.in_progress import activities_in_progress
from assay.planning.problem import compile_problem
from assay.planning.program.file import read_progress
from assay.planning.program.offer import Offer, Quantiles, Safety
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.program.progress import Progress
from assay.planning.replan import replan
from assay.planning.schedule import Effort, InfeasibleError, UndecidedError, to_plan
from assay.planning.simulation.forecast import ProgramEstimate, budget_by_day, forecast, remaining_by_day
from assay.planning.simulation.offer import baseline_of
from random_program import random_program

NO_NOISE = {
    "noise.work_factor": 1.0,
    "noise.work_sigma": 0.0,
    "noise.run_sigma": 0.0,
    "noise.interrupts_per_device_hour": 0.0,
    "noise.rerun_probability": 0.0,
}
SAFETY = Safety(
    num_programs=1,
    p_on_time=1.0,
    p_over_budget=0.0,
    decision_day=Quantiles(p10=1, p50=1, p90=1),
    device_hours=Quantiles(p10=1, p50=1, p90=1),
    verdicts={"scale": 1.0},
)
SEEDS = st.integers(0, 10_000)


def without_noise(program: Program) -> Program:
    """Without any luck, and without the hours that a run loses when it gives way."""
    runs = {f"activities.{name}.runs.resume_hours": 0 for name, activity in program.activities.items() if activity.runs}
    return program.changed(NO_NOISE | runs)


def ample(program: Program) -> Program:
    """With room for all at once: then what lasts longer never lets anything else come sooner."""
    people = {f"team.{name}": {"fte": 100, "part_of": role.part_of} for name, role in program.team.items()}
    return program.changed(
        people | {"capacity": {"devices": 100_000}, "budget": {"device_hours": 3000}, "noise.run_sigma": 0.3}
    )


def planned(program: Program) -> Plan:
    problem = compile_problem(program)
    found = first_schedule(problem, tries=3, seed=0)
    if found is None:
        reject()
    return to_plan(program, problem, found, ())


def random_notes(program: Program, plan: Plan, seed: int) -> Progress:
    """What may have happened until some hour: late, early, noted, half noted, run by run."""
    rng = random.Random(seed)
    now = rng.randint(min(item.start_h for item in plan.items) + 1, max(item.end_h for item in plan.items))

    def moment(hour: int) -> str:
        return program.calendar.date_of(hour).isoformat()

    actuals = {}
    for item in plan.items:
        if item.start_h >= now or item.name == program.decision.decided_by or rng.random() < 0.2:
            continue
        start = min(now, max(0, item.start_h + rng.choice([-5, 0, 0, 7])))
        entry: dict[str, object] = {"started": moment(start)}
        hours = item.device_hours()
        if item.end_h <= now and rng.random() < 0.6:
            entry["ended"] = moment(rng.randint(start, now))
        else:
            entry |= {"expected_end": moment(now + rng.randint(1, 200))} if rng.random() < 0.4 else {}
            entry |= {"device_hours_to_come": rng.randint(0, 300)} if hours and rng.random() < 0.4 else {}
        if hours and rng.random() < 0.3:
            entry["runs"] = [
                {
                    "run_id": f"{item.name}-{index}",
                    "started": moment(start),
                    "ended": entry.get("ended") or (moment(rng.randint(start, now)) if index % 2 else None),
                    "device_hours": rng.randint(0, 300),
                }
                for index in range(rng.randint(1, len(item.runs) + 1))
            ]
        elif rng.random() < 0.5:
            entry["device_hours"] = rng.randint(0, 400)
        actuals[item.name] = entry
    return Progress.model_validate({"now": moment(now), "activities": actuals})


def forecast_of(program: Program, plan: Plan, progress: Progress, *, num_samples: int = 16) -> ProgramEstimate:
    offer = Offer(
        program=program.name,
        program_sha256="",
        seed=0,
        target_on_time=0.5,
        target_over_budget=0.5,
        meets_targets=True,
        moves=(),
        plan=plan,
        safety=SAFETY,
        baseline_plan=plan,
        baseline_safety=SAFETY,
        evaluated=(),
        spent_s=0.0,
        calendar=program.calendar,
        decide_by=program.decision.by,
    )
    return forecast(program, offer, progress, baseline=baseline_of(plan), num_samples=num_samples)


@given(SEEDS, SEEDS)
@settings(max_examples=8, deadline=None)
def test_forecast_and_burn_down_agree_with_what_is_noted_where_nothing_scatters(which: int, seed: int) -> None:
    program = without_noise(random_program(which))
    plan = planned(program)
    progress = random_notes(program, plan, seed)
    found, in_progress = forecast_of(program, plan, progress), activities_in_progress(program, plan, progress)
    assert found.spent == pytest.approx(sum(activity.spent for activity in in_progress.values()))
    for name, activity in in_progress.items():
        np.testing.assert_allclose(found.in_progress_device_hours[name], activity.spent + activity.to_come, atol=1e-6)
    budget, today = program.budget.device_hours, found.now_h / 24
    _, actual = budget_by_day(found, [], num_days=99)
    assert actual[-1] == (today, pytest.approx(budget - found.spent))
    assert [left for _, left in actual] == sorted((left for _, left in actual), reverse=True)
    low, middle, high = remaining_by_day(found, days=[today, 999.0], shares=(0.1, 0.5, 0.9))
    assert [low[0], middle[0], high[0]] == pytest.approx(3 * [budget - found.spent])
    assert middle[1] == pytest.approx(budget - float(np.median(found.outcome.device_hours)))


@given(SEEDS, SEEDS)
@settings(max_examples=3, deadline=None)
@example(which=408, seed=152).via("nothing fits, and one's people are a limit that is tried without")
def test_re_planning_spends_what_the_forecast_says(which: int, seed: int) -> None:
    agrees(which, seed)


@pytest.mark.slow
@given(SEEDS, SEEDS)
@settings(max_examples=100, deadline=None)
def test_re_planning_spends_what_the_forecast_says_in_many_programs(which: int, seed: int) -> None:
    agrees(which, seed)


def agrees(which: int, seed: int) -> None:
    # Ample, so that there is a plan whatever is noted.
    program = without_noise(ample(random_program(which))).changed({"budget": {"device_hours": 1e6}})
    plan = planned(program)
    progress = random_notes(program, plan, seed)
    try:
        after = replan(program, plan, progress, effort=Effort(seconds=5, workers=1))
    except (InfeasibleError, UndecidedError):
        reject()
    found = forecast_of(program, plan, progress)
    remaining = sum(item.device_hours() for item in after.items if item.name not in progress.activities)
    assert after.device_hours - remaining == pytest.approx(found.spent + found.to_come, abs=0.5)
    for name, activity in found.in_progress.items():
        assert after.item(name) == activity.item


@given(SEEDS, SEEDS, st.sampled_from(["device_hours", "device_hours_to_come", "expected_end"]), st.integers(1, 90))
@settings(max_examples=25, deadline=None)
def test_more_spent_more_to_come_or_a_later_end_is_never_a_better_forecast(
    which: int, seed: int, what: str, more: int
) -> None:
    program = ample(random_program(which))
    plan = planned(program)
    progress = random_notes(program, plan, seed)
    forecast_with = {
        name: activity for name, activity in progress.activities.items() if activity.ended is None and not activity.runs
    }
    forecast_with = {name: activity for name, activity in forecast_with.items() if getattr(activity, what) is not None}
    assume(forecast_with)
    name, activity = sorted(forecast_with.items())[0]
    before = getattr(activity, what)
    hour_of, date_of = program.calendar.hour_of, program.calendar.date_of
    value = date_of(hour_of(before) + more).isoformat() if what == "expected_end" else before + more
    worse = {**progress.activities, name: activity.model_copy(update={what: value})}
    was = forecast_of(program, plan, progress).outcome
    now = forecast_of(program, plan, progress.model_copy(update={"activities": worse})).outcome
    assert (now.device_hours >= was.device_hours - 1e-6).all()
    assert (now.decision_h >= was.decision_h - 1e-6).all()
    if what == "device_hours_to_come":
        assert now.device_hours.mean() > was.device_hours.mean()


@given(SEEDS, SEEDS, st.floats(0.0, 1.4), st.booleans(), st.sampled_from([0, 30]))
@settings(max_examples=25, deadline=None)
def test_to_state_what_would_be_taken_anyway_changes_no_forecast(
    which: int, seed: int, share: float, by_runs: bool, late_h: int
) -> None:
    """Hours that follow from the time since the start, or from runs that are known; and the same, stated."""
    program = ample(random_program(which))
    plan = planned(program)
    item = random.Random(seed).choice([item for item in plan.items if item.runs] or [None])
    assume(item is not None)
    now_h = item.start_h + 1 + int(share * (item.end_h - item.start_h))

    def moment(hour: int) -> str:
        return program.calendar.date_of(hour).isoformat()

    actual: dict[str, object] = {"started": moment(item.start_h)}
    if late_h:
        actual["expected_end"] = moment(max(now_h, item.end_h) + late_h)
    if by_runs:
        actual["runs"] = [
            {
                "run_id": f"{index}",
                "started": moment(run.holds[0][0] + 3 * index),
                "device_hours": run.devices * (now_h - run.holds[0][0] - 3 * index),
            }
            for index, run in enumerate(item.runs)
            if run.holds[0][0] + 3 * index < now_h
        ]

    def forecast_stating(**declared: float) -> ProgramEstimate:
        notes = {"now": moment(now_h), "activities": {item.name: actual | declared}}
        return forecast_of(program, plan, Progress.model_validate(notes))

    before = forecast_stating()
    after = forecast_stating(device_hours=before.spent, device_hours_to_come=before.to_come)
    assert (after.spent, after.to_come) == (before.spent, before.to_come)
    if before.to_come:
        np.testing.assert_allclose(after.outcome.device_hours, before.outcome.device_hours)
    np.testing.assert_array_equal(after.outcome.decision_h, before.outcome.decision_h)


def test_what_waited_for_devices_has_not_held_them(small: Program) -> None:
    """Long overdue, noted to have spent little: its work is what was planned, not all hours since its start."""
    program = without_noise(small.changed({"gates": {}, "activities.memo.after": ["runs"], "activities.extra": None}))
    plan = planned(program)
    begin = plan.item("runs").start_h
    actual = {"started": program.calendar.date_of(begin).isoformat(), "device_hours": 50}
    now = program.calendar.date_of(begin + 24 * 20).isoformat()
    found = forecast_of(program, plan, Progress.model_validate({"now": now, "activities": {"runs": actual}}))
    assert (found.spent, found.to_come) == (50, 320 - 50)
    assert found.outcome.device_hours.tolist() == pytest.approx([320.0] * 16)


def test_what_is_noted_of_a_running_activity_moves_the_forecast(small: Program) -> None:
    """The same 240 planned hours, noted in four ways."""
    runs = {"count": 1, "modes": [{"devices": 8, "hours": 30}]}
    program = without_noise(
        small.changed({"activities.runs.runs": runs, "gates": {}, "activities.extra": None})
    ).changed({"activities.memo.after": ["runs"]})
    plan = planned(program)
    start = plan.item("runs").start_h

    def forecast_with(**noted: object) -> ProgramEstimate:
        moments = {"started": program.calendar.date_of(start).isoformat()}
        now = program.calendar.date_of(start + 10).isoformat()
        progress = Progress.model_validate({"now": now, "activities": {"runs": moments | noted}})
        return forecast_of(program, plan, progress)

    at_end = {"expected_end": program.calendar.date_of(start + 24 * 9).isoformat()}
    hours = [
        forecast_with(**noted).outcome.device_hours[0]
        for noted in (
            {},
            {"device_hours": 150},
            {"device_hours": 480},
            {"device_hours": 150, "device_hours_to_come": 120},
        )
    ]
    assert hours == [240, 240, 480, 270]
    assert forecast_with().spent == 80 and forecast_with(device_hours=150).spent == 150
    assert forecast_with(**at_end).outcome.decision_h[0] > forecast_with().outcome.decision_h[0] + 100
    assert forecast_with(**at_end).outcome.device_hours[0] == 240, "the same work, later"


def test_nothing_noted_as_spent_or_to_come_is_nothing_and_what_is_not_noted_is_as_planned(
    small: Program,
) -> None:
    program = small.changed({"gates": {}, "activities.memo.after": ["runs"], "activities.extra": None})
    plan = planned(program)
    start = plan.item("runs").start_h
    moments = {"started": program.calendar.date_of(start).isoformat()}
    now = program.calendar.date_of(start + 5).isoformat()

    def forecast_with(**noted: float) -> ProgramEstimate:
        progress = Progress.model_validate({"now": now, "activities": {"runs": moments | noted}})
        again = Progress.from_json(progress.to_json(), source="as written")
        assert again == progress
        return forecast_of(program, plan, again, num_samples=64)

    none_to_come = forecast_with(device_hours=100, device_hours_to_come=0)
    assert none_to_come.to_come == 0 and none_to_come.in_progress["runs"].is_noted
    assert set(none_to_come.in_progress_device_hours["runs"]) == {100.0}
    none_spent = forecast_with(device_hours=0)
    assert (none_spent.spent, none_spent.to_come, none_spent.in_progress["runs"].is_noted) == (0, 320, True)
    nothing_noted = forecast_with()
    assert nothing_noted.spent > 0 and not nothing_noted.in_progress["runs"].is_noted
    assert nothing_noted.in_progress_device_hours["runs"].std() > 0


STARTED = {"started": "2027-01-04"}
OVER = {"runs": STARTED | {"ended": "2027-01-06"}}
HELD = OVER | {"gate": {"started": "2027-01-06T09:00", "ended": "2027-01-06T13:00"}}
GOING = OVER | {"gate": {"started": "2027-01-06T09:00"}}
LATER, EARLIER = {"started": "2027-01-07"}, {"started": "2027-01-06T10:00"}
RUN = {"run_id": "a", "started": "2027-01-04", "device_hours": 5}


@pytest.mark.parametrize(
    ("activities", "verdicts", "message"),
    [
        (
            {"prepare": STARTED | {"runs": [RUN]}},
            {},
            "activities.prepare.runs: 'prepare' is work of people and has no",
        ),
        ({"prepare": STARTED | {"ended": "2027-01-03"}}, {}, "ended: 2027-01-03 lies before its start"),
        ({"prepare": STARTED | {"expected_end": "2027-01-05"}}, {}, "expected_end: 2027-01-05 is past"),
        (
            {"runs": STARTED | {"ended": "2027-01-06", "runs": [RUN]}},
            {},
            r"runs.runs.0: goes on, and 'runs' has ended",
        ),
        ({"runs": STARTED | {"device_hours": 9, "runs": [RUN]}}, {}, "device_hours: 9, and its runs sum to 5"),
        ({"runs": STARTED | {"device_hours": 0, "runs": [RUN]}}, {}, "device_hours: 0, and its runs sum to 5"),
        ({"runs": STARTED | {"runs": [RUN | {"ended": "2027-02-01"}]}}, {}, "2027-02-01 lies after now"),
        (OVER, {"gate": ["pass"]}, "verdicts.gate: 'pass', and when the gate was held is not noted"),
        (GOING, {"gate": ["pass"]}, "verdicts.gate: 'pass', and the gate is not over (activities.gate.ended)"),
        (HELD, {}, "activities.gate.ended: over since 2027-01-06T13:00, and what it said is not noted"),
        (
            OVER | {"extra": LATER},
            {},
            "extra.started: began 2027-01-07, and 'gate', the gate for",
        ),
        (
            GOING | {"memo": LATER},
            {},
            "memo.started: began 2027-01-07, and 'gate', the gate for",
        ),
        (HELD | {"extra": EARLIER}, {"gate": ["pass"]}, "waits, was over 2027-01-06T13:00 only"),
        (HELD | {"extra": LATER}, {"gate": ["stop"]}, "waits, said 'stop' (verdicts.gate)"),
        (HELD | {"extra": LATER}, {"gate": ["narrow"]}, "waits, said 'narrow' (verdicts.gate)"),
        (HELD | {"extra": LATER}, {"gate": ["again"]}, "waits, said 'again' (verdicts.gate)"),
        (HELD, {"gate": ["stop", "pass"]}, "stop, then pass: it is held once more only after 'again'"),
        ({}, {"gate": ["pass"]}, "verdicts.gate: 'runs', which it judges, is not over"),
        ({"runs": STARTED}, {"gate": ["pass"]}, "'runs', which it judges, is not over"),
        (HELD, {"gate": ["pass", "pass"]}, "it is held once more only after 'again'"),
        (HELD, {"gate": ["again"] * 3}, "3 verdicts; the gate may be held 2 times"),
        (HELD, {"gate": []}, "verdicts.gate: says nothing"),
    ],
)
def test_notes_that_do_not_fit_get_one_error_each(small: Program, activities, verdicts, message: str, tmp_path) -> None:
    progress = Progress.model_validate({"now": "2027-01-08", "activities": activities, "verdicts": verdicts})
    path = tmp_path / "notes.yaml"
    path.write_text(progress.model_dump_json(exclude={"kind", "version"}, exclude_defaults=True))
    with pytest.raises(ConfigError) as raised:
        read_progress(path, small)
    assert message in str(raised.value)
    assert str(raised.value).count("\n") == 1


@pytest.mark.parametrize(
    ("activities", "verdicts"),
    [
        (OVER, {}),
        (GOING, {}),
        (GOING, {"gate": ["again"]}),
        (HELD, {"gate": ["again"]}),
        (HELD | {"extra": LATER, "memo": LATER}, {"gate": ["pass"]}),
        (HELD | {"memo": LATER}, {"gate": ["narrow"]}),
        (HELD | {"memo": LATER}, {"gate": ["stop"]}),
        (HELD | {"memo": LATER}, {"gate": ["again", "pass"]}),
    ],
)
def test_notes_on_a_gate_that_go_together_are_read(small: Program, activities, verdicts, tmp_path) -> None:
    progress = Progress.model_validate({"now": "2027-01-08", "activities": activities, "verdicts": verdicts})
    path = tmp_path / "notes.yaml"
    path.write_text(progress.model_dump_json(exclude={"kind", "version"}, exclude_defaults=True))
    assert read_progress(path, small) == progress


def test_a_gate_that_its_campaign_decides_is_over_without_a_noted_verdict(small: Program, tmp_path) -> None:
    program = small.changed({"gates.gate.evidence.campaign": "wins"})
    path = tmp_path / "notes.yaml"
    path.write_text(json.dumps({"now": "2027-01-08", "activities": HELD}))
    assert not read_progress(path, program).verdicts


def test_runs_noted_of_peoples_work_are_refused_by_the_forecast_too(small: Program) -> None:
    plan = planned(small.changed({"gates": {}, "activities.memo.after": ["runs"], "activities.extra": None}))
    progress = Progress.model_validate({"now": "2027-01-08", "activities": {"prepare": STARTED | {"runs": [RUN]}}})
    program = small.changed({"gates": {}, "activities.memo.after": ["runs"], "activities.extra": None})
    with pytest.raises(ConfigError, match=r"activities\.prepare\.runs: 'prepare' is work of people"):
        forecast_of(program, plan, progress)
