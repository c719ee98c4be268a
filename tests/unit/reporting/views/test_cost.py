"""Costs equal goodput, the API's costs and the ledger's rows, however they are grouped and cut into days."""

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.records.run import Attempt, PhaseSeconds, Run
from assay.records.session import SessionCharged, SessionCreated
from assay.reporting.views.cost import CostOwners, CostReport, Grouping, cost_report
from assay.serving.admin.spend import ChargedResources, debit_all
from assay.serving.sessions.sessions import SessionRepository
from assay.store.ledger.goodput import goodput_of
from assay.store.ledger.ledger import Ledger, open_ledger
from assay.store.objects import open_store
from assay.store.settings import Settings
from clocks import ManualClock
from machine import MACHINE

PRICES = Settings(currency="EUR", device_hour_prices={"cpu": 2.0})
NOBODY = CostOwners(lambda run_id: "", lambda run_id: "", lambda run_id: [])
DAY_S = 86_400.0


def run_of(run_id: str, *, is_drill: bool = False) -> Run:
    return Run(
        run_id=run_id, created_s=0.0, recipe={"name": "tiny"}, recipe_sha256="", dataset_fingerprint="",
        code_version="", run_dir="", store_url="", num_steps=10, is_drill=is_drill,
    )  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as opened:
        yield opened


def live(ledger: Ledger, run_id: str, lives: list[tuple[str, float, float]], *, is_drill: bool = False) -> None:
    """Record attempts of two ranks: outcome, length and the gap before the next one, in seconds."""
    ledger.record_run(run_of(run_id, is_drill=is_drill))
    at_s = 0.8 * DAY_S
    for number, (outcome, length_s, gap_s) in enumerate(lives, 1):
        is_open = outcome == "running"
        ledger.record_attempt(
            Attempt(
                run_id=run_id, attempt=number, world_size=2, start_step=0, started_s=at_s, outcome=outcome,
                ended_s=None if is_open else at_s + length_s, end_step=None if is_open else 5, **MACHINE,
            )
        )  # fmt: skip
        for rank in range(0 if is_open else 2):
            seconds = {"startup": length_s / 8, "compute": length_s / 2, "lost": length_s / 4, "idle": length_s / 8}
            ledger.record_phase_seconds(
                PhaseSeconds(run_id=run_id, attempt=number, rank=rank, held_s=length_s, seconds=seconds)
            )
        at_s += length_s + gap_s
    ledger.record_phase_seconds(
        PhaseSeconds(run_id=run_id, attempt=0, rank=0, held_s=900.0, seconds={"evaluation": 900.0})
    )


def report_of(ledger: Ledger, **window: object) -> CostReport:
    return cost_report(ledger, PRICES, NOBODY, **{"by": "day", **window})  # type: ignore[arg-type]


LIVES = [("killed", 0.5 * DAY_S, 3600.0), ("failed", 7200.0, 60.0), ("succeeded", 2.25 * DAY_S, 0.0)]


@pytest.mark.parametrize("by", get_args(Grouping))
def test_totals_equal_goodput_and_lines_sum_to_them(ledger: Ledger, by: Grouping) -> None:
    live(ledger, "a", LIVES)
    live(ledger, "b", [("preempted", 60.0, 5.0), ("running", 0.0, 0.0)])
    live(ledger, "drill-x", LIVES, is_drill=True)
    report = report_of(ledger, by=by)
    goodput = goodput_of(ledger, [run for run in ledger.runs() if not run.is_drill], PRICES)
    total = report.total
    assert total.held_device_hours * 3600 == pytest.approx(goodput.held_device_s)
    assert total.useful_device_hours * 3600 == pytest.approx(goodput.useful_device_s())
    assert total.lost_device_hours * 3600 == pytest.approx(goodput.by_phase["lost"])
    assert total.evaluation_device_hours * 3600 == pytest.approx(goodput.evaluation_device_s)
    assert total.cost == pytest.approx(goodput.cost) and total.currency == "EUR"
    waited_s = sum(found.waited_device_s for found in goodput.interruptions)
    assert total.waiting_device_hours * 3600 == pytest.approx(waited_s) and waited_s
    costs = sum(found.cost_device_s() for found in goodput.interruptions)
    assert sum(found.device_hours for found in report.interruptions) * 3600 == pytest.approx(costs)
    assert report.num_open_attempts == goodput.num_open_attempts == 1
    for field in ("held", "useful", "lost", "other", "evaluation", "waiting"):
        parts = sum(getattr(line, f"{field}_device_hours") for line in report.lines)
        assert parts == pytest.approx(getattr(total, f"{field}_device_hours")), field


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cut=st.integers(0, 6))
def test_two_windows_that_meet_sum_to_the_whole(ledger: Ledger, cut: int) -> None:
    live(ledger, "a", LIVES)
    middle = date(1970, 1, 1) + timedelta(days=cut)
    before = report_of(ledger, until=middle).total
    after = report_of(ledger, since=middle + timedelta(days=1)).total
    whole = report_of(ledger).total
    assert before.held_device_hours + after.held_device_hours == pytest.approx(whole.held_device_hours)
    assert (before.cost or 0.0) + (after.cost or 0.0) == pytest.approx(whole.cost)


def test_an_attempt_is_split_between_its_days_in_proportion(ledger: Ledger) -> None:
    live(ledger, "a", [("succeeded", 0.4 * DAY_S, 0.0)])
    first, second = report_of(ledger).lines
    assert (first.name, second.name) == ("1970-01-01", "1970-01-02")
    assert first.held_device_hours == pytest.approx(second.held_device_hours) == pytest.approx(2 * 0.2 * 24)


def test_a_device_without_a_price_makes_its_cost_unknown(ledger: Ledger) -> None:
    live(ledger, "a", LIVES)
    other = Settings(currency="EUR", device_hour_prices={"H200": 2.0})
    assert cost_report(ledger, other, NOBODY, by="person").total.cost is None
    assert cost_report(ledger, Settings(), NOBODY, by="person").total.cost is None


def test_runs_are_grouped_by_their_owners(ledger: Ledger) -> None:
    live(ledger, "a", LIVES)
    live(ledger, "b", LIVES)
    owners = CostOwners(lambda run_id: f"p-{run_id}", lambda run_id: "wp" if run_id == "a" else "", lambda run_id: [])
    by_project = cost_report(ledger, PRICES, owners, by="project")
    assert {line.name for line in by_project.lines} == {"p-a", "p-b"}
    by_program = cost_report(ledger, PRICES, owners, by="program")
    assert {line.name: line.num_runs for line in by_program.lines} == {"wp": 1, "": 1}
    by_person = cost_report(ledger, PRICES, owners, by="person")
    assert {line.num_runs for line in by_person.lines} == {2}


def test_a_session_costs_what_it_was_charged_on_the_days_of_its_leases(ledger: Ledger) -> None:
    sessions, session_id = SessionRepository(open_store("memory:"), ManualClock()), "session-" + "0" * 24
    sessions.put(SessionCreated(session_id=session_id, project="ours", at_s=0.0, key_id="", sdk_version="0.38.0"))
    for lease, day, device_s in ((1, 1, 1800.0), (1, 1, 3600.0), (2, 3, 900.0)):
        times = {"at_s": 0.0, "began_s": day * DAY_S, "ended_s": day * DAY_S + 9000.0}
        sessions.charge(session_id, SessionCharged(lease=lease, device_s=device_s, redone_s=0.2 * device_s, **times))
    charged = ChargedResources(sessions)
    debit_all(ledger, charged)
    state = sessions.state(session_id)
    assert state is not None
    owners = CostOwners(charged.project, lambda run_id: "", lambda run_id: state.charges)
    days = cost_report(ledger, PRICES, owners, by="day").lines
    found = [(line.name, line.held_device_hours, line.useful_device_hours, line.cost) for line in days]
    assert found == [("1970-01-02", 1.0, 0.8, 2.0), ("1970-01-04", 0.25, 0.2, 0.5)]
    [line] = cost_report(ledger, PRICES, owners, by="project").lines
    hours = line.held_device_hours, line.lost_device_hours, line.evaluation_device_hours
    assert (line.name, *hours) == ("ours", 1.25, 0.25, 0.0)
