"""The page of costs shows what the command line, the API and the ledger say, to the projects that may see it."""

import csv
import re
from datetime import UTC, datetime
from html import unescape
from io import StringIO

import pytest

from assay.records.run import Attempt, PhaseSeconds
from assay.serving.admin.spend import costs_of_day, day_of, days_between
from machine import MACHINE
from unit.dashboard.accepted import accept_job, charge
from unit.dashboard.conftest import Site
from unit.dashboard.test_jobs import logged_in
from unit.store.ledger.test_goodput import run_of

NOON_S = 1_800_000_000.0


def trained(site: Site, run_id: str, *, hours: float = 12.0) -> None:
    """Record a run of one attempt on two ranks, and one hour of evaluation."""
    with site.dashboard.home.open_ledger() as ledger:
        ledger.record_run(run_of(run_id))
        ledger.record_attempt(
            Attempt(
                run_id=run_id, attempt=1, world_size=2, start_step=0, started_s=NOON_S, ended_s=NOON_S + 3600 * hours,
                end_step=10, outcome="succeeded", **MACHINE,
            )
        )  # fmt: skip
        for rank in range(2):
            seconds = {"compute": 3600 * hours}
            ledger.record_phase_seconds(
                PhaseSeconds(run_id=run_id, attempt=1, rank=rank, held_s=3600 * hours, seconds=seconds)
            )
        evaluation = PhaseSeconds(run_id=run_id, attempt=0, rank=0, held_s=3600.0, seconds={"evaluation": 3600.0})
        ledger.record_phase_seconds(evaluation)


def job_with_run(site: Site, project: str) -> str:
    job_id = accept_job(site.dashboard.api, project, at_s=NOON_S)
    trained(site, job_id)
    day_s = 86_400.0
    charge(
        site.dashboard.api, job_id, attempt=1, began_s=NOON_S, ended_s=NOON_S + day_s / 2, device_s=2 * day_s / 2
    )  # fmt: skip
    charge(
        site.dashboard.api, job_id, attempt=0, began_s=NOON_S + day_s, ended_s=NOON_S + day_s + 3600, device_s=3600.0
    )  # fmt: skip
    return job_id


def lines_of(text: str) -> dict[str, dict[str, str]]:
    return {line["name"]: line for line in csv.DictReader(StringIO(text))}


def test_by_day_the_costs_of_jobs_equal_those_of_the_api(site: Site) -> None:
    job_with_run(site, "default")
    lines = lines_of(site.browser.get("/cost.csv?by=day").text)
    first = day_of(NOON_S)
    days = [*days_between(first, first.replace(day=first.day + 3))]
    of_api = {
        day.isoformat(): sum(cost.device_s for cost in costs_of_day(site.dashboard.api.charged, day)) for day in days
    }
    found = {
        day: 3600 * (float(line["held_device_hours"]) + float(line["evaluation_device_hours"]))
        for day, line in lines.items()
        if day != "all"
    }
    assert found == pytest.approx({day: spent_s for day, spent_s in of_api.items() if spent_s})
    assert len(found) == 2


def test_a_project_sees_its_costs_only(site: Site) -> None:
    job_with_run(site, "mine")
    other_id = job_with_run(site, "theirs")
    trained(site, "from-the-command-line")
    browser = logged_in(site, "mine")
    assert set(lines_of(browser.get("/cost.csv").text)) == {"mine", "", "all"}
    page = browser.get("/cost").text
    assert other_id not in page and "theirs" not in page and "48.0000" in page
    admin = logged_in(site, scopes=("admin",))
    assert set(lines_of(admin.get("/cost.csv").text)) == {"mine", "theirs", "", "all"}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("by=team", "by=team: expected one of"),
        ("from=May", "from=May: expected a day"),
        ("from=2027-02-01&to=2027-01-01", "to=2027-01-01: expected"),
    ],
)
def test_a_wrong_filter_is_named(site: Site, query: str, words: str) -> None:
    response = site.browser.get(f"/cost?{query}")
    assert response.status_code == 400 and words in response.text


def test_one_link_leads_to_the_costs_since_yesterday(site: Site) -> None:
    link = re.search(r'href="([^"]*)">since yesterday', site.browser.get("/cost?by=project&to=2026-01-01").text)
    yesterday = datetime.fromtimestamp(site.dashboard.clock.now_s() - 86_400, UTC).date()
    assert link and unescape(link[1]) == f"/cost?by=day&from={yesterday}"
    assert "Cost by day" in site.browser.get(unescape(link[1])).text


def test_a_name_is_no_formula_of_a_spreadsheet(site: Site) -> None:
    trained(site, "run")
    with site.dashboard.home.open_ledger() as ledger:
        (attempt,) = ledger.attempts("run")
        hostile = attempt.environment.model_copy(update={"user": "=cmd()"})
        ledger.record_attempt(attempt.model_copy(update={"environment": hostile}))
    assert "'=cmd()" in lines_of(site.browser.get("/cost.csv?by=person").text)
