"""The first page: what needs a person, what waits and why, what failed and by which cause."""

import html
import re
import time

import pytest

from assay.records.commit import RunFinished
from assay.records.run import Attempt
from assay.records.suspect import Suspect
from assay.reporting.values import device_hours_text
from assay.reporting.views.cost import cost_report, owners_in
from fleet_ledger import recorded_fleet
from machine import MACHINE
from unit.dashboard.accepted import accept_job, validate
from unit.dashboard.conftest import Site
from unit.dashboard.test_jobs import logged_in
from unit.dashboard.test_programs import ready_page
from unit.store.ledger.test_goodput import run_of


def failed(
    site: Site, run_id: str, *, ago_s: float = 600.0, text: str = "CUDA out of memory", **changes: object
) -> None:
    """Record a run whose only attempt failed."""
    now_s = site.dashboard.clock.now_s()
    fields: dict[str, object] = {
        "run_id": run_id, "attempt": 1, "world_size": 2, "start_step": 0, "started_s": now_s - ago_s - 3600.0,
        "ended_s": now_s - ago_s, "end_step": 4, "outcome": "failed", "reason": text, **MACHINE, **changes,
    }  # fmt: skip
    with site.dashboard.home.open_ledger() as ledger:
        ledger.record_run(run_of(run_id).model_copy(update={"created_s": fields["started_s"]}))
        ledger.record_attempt(Attempt.model_validate(fields))


def shown(site: Site) -> str:
    return html.unescape(ready_page(site, "/"))


def test_an_empty_home_says_what_to_do_first(site: Site) -> None:
    text = shown(site)
    assert "assay demo" in text and "assay plan new FILE" in text and "No run is at work" in text
    assert "Needs a person" not in text


def test_a_run_that_failed_since_yesterday_is_shown_with_what_was_seen(site: Site) -> None:
    failed(site, "recent")
    failed(site, "old", ago_s=2 * 86_400.0)
    text = shown(site)
    assert 'href="/runs/recent"' in text and "CUDA out of memory" in text and "device memory" in text
    assert "/runs/old" not in text and "First steps" not in text
    assert re.search(r'href="/cost\?by=day&from=[\d-]{10}">what failures cost', text)


def test_the_cause_that_triage_confirms_is_named(site: Site) -> None:
    recorded_fleet(
        site.dashboard.home, num_runs=200, fails=lambda _, host: 0.7 if host == "n05" else 0.02, hosts=8
    )  # fmt: skip
    failed(site, "of-the-bad-host", ago_s=60.0, text="bus error", hosts=("n05", "n05"))
    failed(site, "of-another", ago_s=60.0, text="disk full", hosts=("n01", "n01"))
    for _ in range(300):
        text = shown(site)
        if "What failures have in common" in text:
            break
        time.sleep(0.1)
    rows = re.findall(r'<tr>(?:(?!</tr>).)*href="/runs/of-(?:(?!</tr>).)*</tr>', text, re.DOTALL)
    (caused,) = (row for row in rows if "of-the-bad-host" in row)
    (other,) = (row for row in rows if "of-another" in row)
    assert "host=n05" in caused and "host=n05" not in other and "storage" in other


def test_hostile_failure_texts_are_text(site: Site) -> None:
    failed(site, "hostile", text="<script>alert(1)</script>")
    text = ready_page(site, "/")
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text


def test_a_waiting_job_has_its_place_and_its_reason(site: Site) -> None:
    api = site.dashboard.api
    jobs = [accept_job(api), accept_job(api, at_s=1_800_000_009.0)]
    for job_id in jobs:
        validate(api, job_id)
    api.jobs.pause(jobs[1])
    text = shown(site)
    waiting = text[text.index(">Waiting</h2>") : text.index(">Failed since yesterday</h2>")]
    assert jobs[0] in waiting and jobs[1] not in waiting and "no worker is running" in waiting
    attention = text[text.index(">Needs a person</h2>") : text.index(">Running</h2>")]
    assert f'href="/jobs/{jobs[1]}"' in attention and "paused" in attention


def test_a_node_that_computed_wrongly_needs_a_person_for_a_week(site: Site) -> None:
    suspect = Suspect(rank=1, node="n12", device="cuda:3", step=7, lane=0, is_certain=True)
    failed(site, "wrong", suspects=(suspect,), text="wrong arithmetic")
    failed(site, "long-ago", ago_s=8 * 86_400.0, suspects=(suspect.model_copy(update={"node": "n13"}),))
    with site.dashboard.home.open_ledger() as ledger:
        finished = RunFinished(attempt=2, step=10, weights_digest="w")
        ledger.record_log_entries("wrong", {0: finished})
    text = shown(site)
    assert "cuda:3 of node n12 computed wrongly in step 7" in text, "although the run has finished since"
    assert "n13" not in text and "No run ended badly" in text


def test_device_hours_of_today_are_those_of_the_costs(site: Site) -> None:
    from assay.records.run import PhaseSeconds
    from assay.serving.admin.spend import day_of

    failed(site, "spent", ago_s=1.0, started_s=site.dashboard.clock.now_s() - 2.0)
    with site.dashboard.home.open_ledger() as ledger:
        held = PhaseSeconds(run_id="spent", attempt=1, rank=0, held_s=7200.0, seconds={"compute": 7200.0})
        ledger.record_phase_seconds(held)
        today = day_of(site.dashboard.clock.now_s())
        owners = owners_in(site.dashboard.home, ledger, site.dashboard.api.charged, by="day")
        report = cost_report(
            ledger, site.dashboard.home.settings(), owners, by="day", since=today, until=today
        )  # fmt: skip
    assert report.total.held_device_hours == pytest.approx(2.0, abs=0.01) or day_of(time.time()) != today
    assert f">{device_hours_text(3600 * report.total.held_device_hours)}<" in shown(site)


def test_a_project_sees_neither_the_jobs_nor_the_failures_of_others(site: Site) -> None:
    job_id = accept_job(site.dashboard.api, "theirs")
    failed(site, job_id, text="their secret")
    browser = logged_in(site, "ours")
    text = browser.get("/").text
    assert job_id not in text and "their secret" not in text and "in common" not in text


def test_a_silent_run_needs_a_person(site: Site) -> None:
    now_s = site.dashboard.clock.now_s()
    failed(site, "silent", outcome="running", ended_s=None, end_step=None, reason="", started_s=now_s - 2000.0)
    with site.dashboard.home.open_ledger() as ledger, ledger.writing() as connection:
        segment = "INSERT INTO metric_segments VALUES ('silent', 'p', '', 1, 1, :at_s)"
        connection.execute(segment, {"at_s": now_s - 1900.0})
    text = shown(site)
    assert "no sign of life for 31 min" in text
