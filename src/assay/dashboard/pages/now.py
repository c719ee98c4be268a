"""The first page: what needs a person, what runs and waits, what failed, and the device-hours of today."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from assay.base.errors import ConfigError
from assay.dashboard.access import Visit
from assay.dashboard.background import Computed
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Page, path_to
from assay.dashboard.pages.jobs import open_jobs, projects_of, queue_table
from assay.dashboard.pages.programs import ProgramState, program_state, program_task
from assay.records.run import AT_WORK
from assay.records.triage_overview import TriageOverview
from assay.reporting.documents.now import DeviceHours, Now, now_document
from assay.reporting.views.cost import cost_report, owners_in
from assay.reporting.views.evidence import CampaignLine, campaign_lines
from assay.reporting.views.now import (
    Attention,
    attention_of_campaigns,
    attention_of_runs,
    causes_by_run,
    failed_runs,
)
from assay.reporting.views.runs.run_list import current_summaries, run_lines
from assay.reporting.views.triage_statements import finding_certainty, finding_next, finding_text
from assay.store.followed import followed_programs
from assay.triage.overview import triage_ledger
from assay.workflows.campaign.folder import find_campaign

DAY_S = 86_400.0
TRIAGE_EVERY_S, COSTS_EVERY_S = 300.0, 60.0
"""While somebody looks, causes and costs are computed again at these intervals."""
MAX_SHARED = 3
AREA_OF = {
    "run": "runs", "node": "runs", "job": "jobs", "gate": "programs", "program": "programs",
    "decision": "decisions", "budget": "decisions",
}  # fmt: skip
"""First part of the address of what needs a person."""
FIRST_STEPS = (
    "Try it: 'assay demo' trains a small classifier and decides on it, in a folder of its own.",
    "Train: 'assay train new' writes a recipe, 'assay train RECIPE' starts a run; it appears here within seconds.",
    "Plan: 'assay plan new FILE' writes a program, 'assay plan offer FILE' schedules it (Programs).",
    "Serve fine-tuning: point an OpenAI client at /v1 of this server, and start 'assay serve worker' (Jobs).",
)


class Causes(NamedTuple):
    """What triage found over all runs."""

    by_run: dict[str, str]
    shared_failures: list[str]


def now_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return what happens in the home now."""
    now_s, reader = dashboard.clock.now_s(), visit.reader
    projects = projects_of(dashboard.api, reader)
    jobs = list(open_jobs(dashboard.api, projects))
    waiting = [job for job in jobs if job.queue]
    with dashboard.ledger() as ledger:
        lines = run_lines(ledger, summaries=current_summaries(ledger, is_unfinished=True))
        campaigns = campaign_lines(ledger)
        is_empty = not (lines or campaigns or jobs or ledger.has_runs())
        failed = failed_runs(ledger, lines, since_s=now_s - DAY_S)
        attention = list(attention_of_runs(ledger, lines, now_s=now_s))
    programs = [(item, program_state(dashboard, item)) for item in followed_programs(dashboard.home)]
    states = [computed.value for _, computed in programs if computed.value is not None]
    attention += attention_of_campaigns(campaigns, _budgets(dashboard, campaigns))
    attention += [item for followed, computed in programs for item in _attention_of_program(followed.name, computed)]
    attention += [
        Attention("job", job.resource_id, f"paused: {job.reason() or 'a client or the dashboard asked for it'}")
        for job in jobs
        if job.status == "paused"
    ]
    # Triage compares all runs, so only who sees all of them is shown its findings.
    tasks = [f"costs of {reader.project if not reader.sees_all else ''}", *(["causes"] if reader.sees_all else [])]
    costs = dashboard.background.latest(tasks[0], int(now_s / COSTS_EVERY_S), partial(_device_hours, dashboard, now_s))
    causes = None
    if failed and reader.sees_all:
        key = int(now_s / TRIAGE_EVERY_S), failed[0].line.run_id, len(failed)
        causes = dashboard.background.latest("causes", key, partial(_causes, dashboard)).value
    now = Now(
        running=[line for line in lines if line.status in AT_WORK],
        waiting=queue_table(waiting) if waiting else None,
        num_waiting=len(waiting),
        failed=failed,
        causes={} if causes is None else causes.by_run,
        shared_failures=[] if causes is None else causes.shared_failures,
        attention=attention,
        device_hours=None if costs.value is None else _with_plan(costs.value, states, now_s),
        first_steps=FIRST_STEPS if is_empty and not states else (),
        programs=[followed.command() for followed, _ in programs],
    )
    document = now_document(now, now_s=now_s, address=lambda about, name: path_to(AREA_OF[about], name))
    yesterday = datetime.fromtimestamp(now_s - DAY_S, UTC).date()
    links = [(f"/cost?by=day&from={yesterday}", "what failures cost since yesterday")] if failed else []
    tasks += [program_task(followed.name) for followed, _ in programs]
    topics = ("runs", "jobs", "campaigns", "followed", "minute", *(f"computed:{task}" for task in tasks))
    return Page(document=replace(document, links=links), area="Now", topics=topics)


def _budgets(dashboard: Dashboard, lines: Sequence[CampaignLine]) -> dict[str, float]:
    """Return the budgets of the campaigns of this home that are not over."""
    here = set(dashboard.home.campaign_names())
    unfinished = {line.campaign for line in lines if not line.is_final and line.campaign in here}
    found = {}
    for name in sorted(unfinished):
        try:
            found[name] = find_campaign(dashboard.home, name).config.budget_device_hours
        except (ConfigError, OSError):  # its own page says what is wrong with it
            continue
    return found


def _attention_of_program(name: str, computed: Computed[ProgramState]) -> Iterator[Attention]:
    if computed.error:
        yield Attention("program", name, computed.error.splitlines()[0], is_bad=True)
    if (state := computed.value) is None:
        return
    for gate in state.gates_due():
        title = state.program.gates[gate].title
        yield Attention("gate", name, f"'{title}' was due by the plan and has no verdict")
    for alarm in state.view.alarms:
        if alarm.level == "act":
            yield Attention("program", name, alarm.text, is_bad=True)


def _causes(dashboard: Dashboard) -> Causes:
    with dashboard.ledger() as ledger:
        fleet = triage_ledger(ledger)
        return Causes(causes_by_run(ledger, fleet), list(_shared_failures(fleet.overview)))


def _shared_failures(overview: TriageOverview) -> Iterator[str]:
    about = [finding for finding in overview.results if finding.about == "failures"]
    for finding in about[:MAX_SHARED]:
        certainty = "" if finding.is_confirmed else f"{finding_certainty(finding)}: "
        yield f"{certainty}{finding_text(finding, attempts=overview.attempts)}. Next: {finding_next(finding)}"


def _midnight_s(now_s: float) -> float:
    return now_s - now_s % DAY_S


def _device_hours(dashboard: Dashboard, now_s: float) -> DeviceHours:
    """Return the device-hours since midnight UTC, as `assay runs cost` counts them, and those of open attempts."""
    today = datetime.fromtimestamp(now_s, UTC).date()
    with dashboard.ledger() as ledger:
        owners = owners_in(dashboard.home, ledger, dashboard.api.charged, by="day")
        report = cost_report(ledger, dashboard.settings(), owners, by="day", since=today, until=today)
        return DeviceHours(report.total.held_device_hours, report.open_device_hours)


def _with_plan(hours: DeviceHours, states: Sequence[ProgramState], now_s: float) -> DeviceHours:
    if not states:
        return hours
    midnight_s = _midnight_s(now_s)
    until_now = sum(state.planned_device_hours(midnight_s, now_s) for state in states)
    whole_day = sum(state.planned_device_hours(midnight_s, midnight_s + DAY_S) for state in states)
    return hours._replace(planned=until_now, planned_today=whole_day)
