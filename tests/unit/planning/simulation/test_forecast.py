"""The running program: what the ledger knows is fixed, the rest is played from today, alarms come first."""

import numpy as np
import pytest

from assay.base.errors import ConfigError
from assay.planning.actuals import ProgramClock, progress_of
from assay.planning.program.progress import Progress
from assay.planning.simulation.forecast import MIN_MATCHING_SAMPLES, budget_by_day, forecast, unwatched
from assay.planning.simulation.offer import baseline_of, make_offer
from assay.planning.simulation.scope import ReliabilityTargets
from assay.records.evaluation import Estimate
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.store.ledger.ledger import open_ledger
from machine import MACHINE

CLOCK = ProgramClock(start_s=1_000_000.0, hour_s=10.0)
NOTES = Progress(
    now="2027-01-08",
    activities={"prepare": {"started": "2027-01-04T09:00", "ended": "2027-01-05T17:00"}},
    events={"data": "2027-01-06"},
)


def at(hour):
    return CLOCK.start_s + CLOCK.hour_s * hour


@pytest.fixture
def offered(small):
    return make_offer(small, targets=ReliabilityTargets(0.3, 0.3), num_samples=500)


@pytest.fixture
def ledger(tmp_path):
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as opened:
        yield opened


def record(ledger, run_id, start_h, end_h, *, world_size=8, outcome="succeeded", attempt=1, lost_s=0.0):
    run = Run(
        run_id=run_id,
        created_s=at(start_h),
        recipe={},
        recipe_sha256="",
        dataset_fingerprint="",
        code_version="",
        run_dir="",
        store_url="",
        num_steps=10,
    )
    ledger.record_run(run)
    ended = None if outcome == "running" else at(end_h)
    ledger.record_attempt(
        Attempt(
            run_id=run_id,
            attempt=attempt,
            world_size=world_size,
            start_step=0,
            started_s=at(start_h),
            ended_s=ended,
            outcome=outcome,
            **MACHINE,
        )
    )
    for rank in range(world_size if ended else 0):
        held = at(end_h) - at(start_h)
        seconds = {"compute": held - lost_s, "lost": lost_s}
        ledger.record_phase_seconds(
            PhaseSeconds(run_id=run_id, attempt=attempt, rank=rank, held_s=held, seconds=seconds)
        )


def test_a_run_belongs_to_the_activity_that_its_id_names(small, ledger):
    record(ledger, "runs-a", 60, 64, outcome="killed", lost_s=10.0)
    record(ledger, "runs-a", 65, 75, attempt=2)
    record(ledger, "runs-b", 70, 0, outcome="running")
    record(ledger, "other-b", 70, 80)
    progress, spends = progress_of(small, ledger, clock=CLOCK, now_s=at(80), notes=NOTES)
    actual = progress.activities["runs"]
    assert actual.ended is None
    assert [run.run_id for run in actual.runs] == ["runs-a", "runs-b"]
    assert [run.device_hours for run in actual.runs] == pytest.approx([8 * 14, 8 * 10])
    assert actual.runs[0].num_failed == 1
    assert actual.runs[0].device_hours_lost == pytest.approx(8)
    assert actual.runs[0].device_hours_by_phase == pytest.approx({"compute": 8 * 13, "lost": 8})
    assert actual.runs[1].device_hours_by_phase == pytest.approx({"unreported": 8 * 10})
    assert sum(spend.device_hours for spend in spends) == pytest.approx(actual.device_hours)


def test_a_run_of_two_activities_is_refused(small, ledger):
    record(ledger, "runs-a", 60, 64)
    greedy = small.changed({"activities.extra.runs.ids": "r*"})
    with pytest.raises(ConfigError, match=r"'runs-a' belongs to 'runs' .* and 'extra' \(r\*\)"):
        progress_of(greedy, ledger, clock=CLOCK, now_s=at(80), notes=NOTES)


def test_of_what_the_ledger_knows_only_what_had_happened_by_then_counts(small, ledger):
    """Notes of Monday, read on Wednesday."""
    record(ledger, "runs-a", 60, 72)
    record(ledger, "runs-b", 60, 66)
    record(ledger, "runs-c", 75, 80)
    ledger.record_run(ledger.run("runs-c").model_copy(update={"run_id": "runs-that-no-attempt-has-begun"}))
    progress, spends = progress_of(small, ledger, clock=CLOCK, now_s=at(70), notes=NOTES)
    actual = progress.activities["runs"]
    assert {run.run_id: run.device_hours for run in actual.runs} == pytest.approx({"runs-a": 80, "runs-b": 48})
    assert {run.run_id: run.ended is None for run in actual.runs} == {"runs-a": True, "runs-b": False}
    assert sum(spend.device_hours for spend in spends) == pytest.approx(128)


@pytest.mark.parametrize("now_h", [70.3, 70.7, 70.0])
def test_what_is_counted_is_counted_to_the_hour_that_is_said_to_be_now(small, ledger, now_h):
    record(ledger, "runs-a", 60, 0, outcome="running")
    record(ledger, "runs-b", 70.2, 70.6)
    progress, spends = progress_of(small, ledger, clock=CLOCK, now_s=at(now_h), notes=NOTES)
    assert progress.now == "2027-01-06T22:00:00"
    assert [run.run_id for run in progress.activities["runs"].runs] == ["runs-a"]
    assert max(spend.end_h for spend in spends) == pytest.approx(70)


def forecast_at(offered, ledger, now_h, *, gain=None, **changes):
    now = f"2027-01-{4 + now_h // 24:02d}T{now_h % 24:02d}:00"
    notes = Progress.model_validate({**NOTES.model_dump(), "now": now, **changes})
    progress, spends = progress_of(offered.program, ledger, clock=CLOCK, now_s=at(now_h), notes=notes)
    found = forecast(
        offered.program,
        offered.offer,
        progress,
        baseline=baseline_of(offered.offer.plan),
        num_samples=1000,
        gain=gain,
    )
    return found, spends


def test_what_is_over_is_counted_once_and_what_goes_on_ends_later_than_now(offered, ledger):
    for name in "abcd":
        record(
            ledger,
            f"runs-{name}",
            60,
            72 if name < "c" else 0,
            outcome="succeeded" if name < "c" else "running",
        )
    found, _ = forecast_at(offered, ledger, 80)
    assert found.spent == pytest.approx(8 * (12 + 12 + 20 + 20))
    assert found.outcome.device_hours.min() > found.spent
    network = found.outcome.compiled.network
    assert (found.outcome.replay.finish_h[network.index("runs#3")] > 80).all()
    np.testing.assert_allclose(found.outcome.replay.finish_h[network.index("runs#1")], 72)
    assert (found.outcome.decision_h > 80).all()


def test_a_gate_that_said_narrow_drops_the_rest_and_its_hours(offered, ledger):
    for name in "abcd":
        record(ledger, f"runs-{name}", 60, 70)
    gate = {"started": "2027-01-07T09:00", "ended": "2027-01-07T13:00"}
    activities = {**NOTES.model_dump()["activities"], "gate": gate}
    found, spends = forecast_at(offered, ledger, 96, activities=activities, verdicts={"gate": ("again", "narrow")})
    assert set(found.outcome.verdict) == {"narrow"}
    assert found.outcome.device_hours.min() >= 320
    assert found.outcome.replay.held_h[found.outcome.compiled.network.index("extra")].sum() == 0
    planned, actual = budget_by_day(found, spends, num_days=10)
    assert actual[-1] == (4.0, pytest.approx(900 - 320))
    assert planned[-1] == pytest.approx(900 - found.plan.device_hours)


def test_a_gate_that_said_narrow_at_once_where_it_would_ask_again_has_narrowed(offered, ledger):
    """Its campaign decided so; by itself its first look passes, stops or asks again."""
    for name in "abcd":
        record(ledger, f"runs-{name}", 60, 70)
    gate = {"started": "2027-01-07T09:00", "ended": "2027-01-07T13:00"}
    activities = {**NOTES.model_dump()["activities"], "gate": gate}
    found, _ = forecast_at(offered, ledger, 96, activities=activities, verdicts={"gate": ("narrow",)})
    assert set(found.outcome.verdict) == {"narrow"}


def test_an_overrun_is_announced_before_it_happens(offered, ledger):
    for name in "abcd":
        record(ledger, f"runs-{name}", 60, 84)
    found, _ = forecast_at(offered, ledger, 90)
    assert found.spent < 900
    assert found.outcome.p_over_budget() > 0.3
    assert {"budget"} <= {alarm.what for alarm in found.alarms if alarm.level == "act"}


def test_what_could_have_begun_long_ago_is_told_but_not_what_waits(offered, ledger):
    found, _ = forecast_at(offered, ledger, 24 * 7)
    waiting = [alarm.what for alarm in found.alarms if "could have begun" in alarm.text]
    assert waiting == ["runs"]
    found, _ = forecast_at(offered, ledger, 24 * 7, verdicts={"gate": ("stop",)})
    assert not [alarm for alarm in found.alarms if "could have begun" in alarm.text]


def test_progress_on_what_is_not_in_the_program_is_refused(offered):
    wrong = Progress(now="2027-01-08", verdicts={"gatee": ("pass",)})
    with pytest.raises(ConfigError, match=r"verdicts\.gatee: not in program 'small'; perhaps you meant 'gate'"):
        forecast(offered.program, offered.offer, wrong, baseline=baseline_of(offered.offer.plan))


def test_verdicts_that_hardly_any_program_agrees_with_teach_nothing_and_that_is_known(offered, ledger):
    sure = offered._replace(program=offered.program.changed({"pilot.gains": [9.0], "pilot.standard_error": 0.1}))
    activities = {
        **NOTES.model_dump()["activities"],
        "gate": {"started": "2027-01-07", "ended": "2027-01-07T13:00"},
    }
    found, _ = forecast_at(sure, ledger, 96, activities=activities, verdicts={"gate": ("stop",)})
    assert found.num_matching < MIN_MATCHING_SAMPLES
    assert not found.is_conditioned()
    found, _ = forecast_at(offered, ledger, 96)
    assert found.num_matching == found.num_samples
    assert found.is_conditioned()


def test_a_stop_raises_where_what_it_watches_falls_below_or_the_whole_gain_does(offered, ledger):
    stops = {
        "cheap": {"title": "Too little", "watch": "device_hours", "below": 5000, "owner": "lead"},
        "none": {"title": "No gain", "watch": "gain", "below": 1.0, "then": "stop", "owner": "lead"},
        "wins": {"title": "Too few wins", "watch": "wins", "below": 1.0, "owner": "lead"},
        "jobs": {"title": "No job fails", "watch": "failure_share", "below": 0.1, "owner": "lead"},
    }
    with_stops = offered._replace(program=offered.program.changed({"stops": stops}))
    found, _ = forecast_at(with_stops, ledger, 48)
    assert {alarm.what for alarm in found.alarms} & set(stops) == {"cheap"}
    assert [stop.title for stop in unwatched(found)] == ["No gain", "Too few wins"]
    for low, high, level in ((-0.5, 0.6, "act"), (-0.5, 1.6, "watch")):
        gain = Estimate(value=0.2, low=low, high=high)
        found, _ = forecast_at(with_stops, ledger, 48, gain=gain)
        assert [alarm.level for alarm in found.alarms if alarm.what == "none"] == [level]
        assert [stop.title for stop in unwatched(found)] == ["Too few wins"]
