"""Programs: what `assay plan status` shows, computed again when its files change, and every hour.

    files of store.followed --> key --> Background: read_program_status, forecast, documents --> page

A forecast takes seconds, so a page shows the newest one and fetches itself again when the next is ready. Nothing is
solved: the schedule is the offer's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.errors import AssayError
from assay.base.units import number_of, percent_text
from assay.dashboard.access import Visit
from assay.dashboard.background import Computed
from assay.dashboard.dashboard import Dashboard, modified
from assay.dashboard.page import Page, PageError, path_to
from assay.planning.actuals import ProgramClock, clock_of
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.program.progress import Progress
from assay.reporting.document import (
    Block,
    Cell,
    Document,
    Drawing,
    Fact,
    FactList,
    Figure,
    Paragraph,
    Section,
    Table,
    Text,
    TitledTable,
    Verdict,
    name,
    number,
)
from assay.reporting.documents.plan.plan_folder import earlier_status, read_offer
from assay.reporting.documents.plan.plan_summary import owner_text
from assay.reporting.documents.plan.status_documents import review, weekly_status
from assay.reporting.views.forecast import ProgramEstimateView, forecast_view
from assay.store.followed import OFFER_FILE, FollowedProgram, followed_programs
from assay.store.home import Home
from assay.store.settings import SETTINGS_FILE
from assay.workflows.program_status import read_program_status

MAX_RUNS = 100
LEAST_INTERVAL_S = 60.0
"""A program in miniature, with hours of a second, is not forecast more often than this."""
NO_PROGRAMS = (
    "No program is known in {folder} yet. A program plans activities, people, devices, gates and dates: begin with "
    "'assay plan new FILE', then 'assay plan offer FILE'. From then on this page shows its Gantt, forecast and alarms."
)
STATUS_SECTIONS = ("Verdicts of the gates", "The evidence")
"""Sections of the review that the status lacks."""


class ProgramState(NamedTuple):
    """A program as of one hour."""

    program: Program
    plan: Plan
    progress: Progress
    view: ProgramEstimateView
    document: Document
    clock: ProgramClock

    def planned_device_hours(self, since_s: float, until_s: float) -> float:
        """Return the device-hours that the plan holds between two moments."""
        since_h, until_h = self.clock.hour(since_s), self.clock.hour(until_s)
        holds = ((run.devices, *hold) for item in self.plan.items for run in item.runs for hold in run.holds)
        return sum(devices * max(0.0, min(end, until_h) - max(begin, since_h)) for devices, begin, end in holds)

    def gates_due(self) -> list[str]:
        """Return the gates without a verdict whose planned end has passed."""
        now_h, verdicts = self.program.calendar.hour_of(self.progress.now), self.progress.verdicts
        items = (item for item in self.plan.items if item.name in self.program.gates)
        return [item.name for item in items if item.end_h <= now_h and item.name not in verdicts]


def programs_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return all known programs with their forecasts."""
    found = [(followed, program_state(dashboard, followed)) for followed in followed_programs(dashboard.home)]
    caption = (
        "By simulation from today: the day of the decision in half of all cases, the probability of a decision by the "
        "deadline, that of spending more than the budget, and what was spent of it."
    )
    rows: list[Sequence[Text]] = [
        (Cell(followed.name, link=path_to("programs", followed.name)), _word(computed), *_facts_of(computed))
        for followed, computed in found
    ]
    table = TitledTable("", caption, Table((name("program"), "status", *FACTS), rows))
    nothing = Paragraph(NO_PROGRAMS.format(folder=dashboard.home.folder))
    return Page(
        document=Document(
            title="Programs",
            kind="programs",
            subtitle=number_of(len(found), "program"),
            sections=[Section("", [table] if found else [nothing])],
            footer=f"The same as JSON: {'; '.join(f'{followed.command()} --json' for followed, _ in found)}",
        ),
        area="Programs",
        topics=("followed", "minute", *(f"computed:{program_task(followed.name)}" for followed, _ in found)),
        retry_s=next(filter(None, (computed.retry_s for _, computed in found)), None),
    )


def program_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return one program: schedule and what happened, forecast, gates, risks and runs."""
    program = visit.path["name"]
    followed = next((item for item in followed_programs(dashboard.home) if item.name == program), None)
    if followed is None:
        raise PageError(
            404, f"no program '{program}' is known in {dashboard.home.folder}. 'assay plan status' adds one."
        )
    computed = program_state(dashboard, followed)
    return Page(
        document=_document(followed, computed),
        area="Programs",
        topics=("followed", "minute", f"computed:{program_task(followed.name)}"),
        retry_s=computed.retry_s,
    )


def program_state(dashboard: Dashboard, followed: FollowedProgram) -> Computed[ProgramState]:
    """Return the newest state of a program; it is computed again if its files, decisions or the hour have changed."""
    home, now_s = dashboard.home, dashboard.clock.now_s()
    files = (followed.file, followed.folder / OFFER_FILE, home.folder / SETTINGS_FILE)
    decisions = sorted(home.campaigns.glob("*/decisions/*.json"))
    key = (
        followed,
        *(modified(file) for file in (*files, *([followed.notes] if followed.notes else []), *decisions)),
        int((now_s - (followed.start_s or 0.0)) / max(followed.hour_s, LEAST_INTERVAL_S)),
    )
    return dashboard.background.latest(
        program_task(followed.name), key, partial(_state, home, followed, dashboard.clock)
    )


def program_task(program: str) -> str:
    """Return the name under which a program's state is computed."""
    return f"program-{program}"


def _state(home: Home, followed: FollowedProgram, clock: Clock) -> ProgramState:
    options = {"notes": followed.notes, "hour_s": followed.hour_s, "start_s": followed.start_s}
    status = read_program_status(home, followed.file, followed.folder, **options, clock=clock)  # type: ignore[arg-type]
    found, price = status.forecast, home.settings().planned_price()
    program, earlier = found.program, earlier_status(followed.folder, found.program, found.progress.now)
    document = weekly_status(found, status.offer, status.spends, price, status.notes, earlier)
    reviewed = review(found, status.offer, [(decision.decision, decision.path) for decision in status.decisions])
    sections = [section for section in reviewed.sections if section.name in STATUS_SECTIONS]
    campaigns = {decision.decision.campaign: decision.gate for decision in status.decisions}
    whole = replace(
        document,
        kind="program",
        sections=[*document.sections, *sections, Section("Risks", [_risks(program)]), *_runs(program, found.progress)],
        links=[(path_to("decisions", name), f"decision of gate {gate}") for name, gate in campaigns.items()],
    )
    time = clock_of(program, hour_s=followed.hour_s)
    time = time if followed.start_s is None else ProgramClock(followed.start_s, followed.hour_s)
    view = forecast_view(found, price)
    return ProgramState(program, found.plan, found.progress, view, _with_drawings(whole), time)


def _with_drawings(document: Document) -> Document:
    """Return the document with each figure drawn once for each width."""

    def drawn(block: Block) -> Block:
        return replace(block, chart=Drawing(cache(block.chart.svg))) if isinstance(block, Figure) else block

    sections = [replace(section, blocks=list(map(drawn, section.blocks))) for section in document.sections]
    return replace(document, sections=sections)


def _risks(program: Program) -> Block:
    if not program.risks:
        return Paragraph("The program states no risks.")
    return TitledTable.of(
        "",
        "As the program states them; alarms of those that show stand at the top.",
        program.risks.values(),
        ("risk", lambda risk: risk.title),
        (number("probability"), lambda risk: percent_text(risk.probability)),
        ("owner", lambda risk: owner_text(program, risk.owner)),
        ("first sign", lambda risk: risk.sign or "—"),
    )


def _runs(program: Program, progress: Progress) -> Iterator[Section]:
    runs = [(activity, run) for activity, actual in progress.activities.items() for run in actual.runs]
    if not runs:
        return
    table = TitledTable.of(
        "",
        f"The newest {MAX_RUNS} of {len(runs):,}." if len(runs) > MAX_RUNS else "",
        runs[-MAX_RUNS:],
        (name("run"), lambda pair: Cell(pair[1].run_id, link=path_to("runs", pair[1].run_id))),
        ("activity", lambda pair: program.activities[pair[0]].title),
        (name("began"), lambda pair: pair[1].started),
        (name("ended"), lambda pair: pair[1].ended or "running"),
        (number("device-hours"), lambda pair: f"{pair[1].device_hours:,.4g}"),
        (number("rolled back"), lambda pair: f"{pair[1].device_hours_lost:,.3g}"),
        (number("attempts failed"), lambda pair: f"{pair[1].num_failed} of {pair[1].num_attempts}"),
    )
    yield Section("Runs", [table])


# What is shown of a state


def _document(followed: FollowedProgram, computed: Computed[ProgramState]) -> Document:
    state = computed.value
    notes = list(_notes(followed, computed))
    if state is None:
        sections = [*notes, *_as_offered(followed)]
        document = Document(title=followed.name, kind="program", sections=sections)
    else:
        document = replace(state.document, sections=[*notes, *state.document.sections])
    if computed.error:
        sentence = f"{computed.error} The page recovers by itself once this is right."
        document = replace(document, verdict=Verdict("bad", "not readable", sentence), tiles=())
    elif state is None:
        sentence = "The forecast takes a few seconds; this page shows it when it is ready."
        document = replace(document, verdict=Verdict("open", "being computed", sentence))
    return replace(document, footer=f"The same as JSON: {followed.command()} --json")


def _notes(followed: FollowedProgram, computed: Computed[ProgramState]) -> Iterator[Section]:
    """Yield as of when the page is, if this is not now."""
    state = computed.value
    if state is None:
        return
    if computed.error:
        yield Section("", [Paragraph(f"What follows is as of {state.view.now}, before the files changed.")])
    if not computed.is_current:
        text = "The program's files or the hour have changed; a new forecast is being computed."
        yield Section("", [Paragraph(Cell(text, "open"))])
    if followed.notes is not None:
        text = f"As of the notes in {followed.notes}, {state.view.now}. Later work shows once they say a later 'now'."
        yield Section("", [Paragraph(text)])


def _as_offered(followed: FollowedProgram) -> Iterator[Section]:
    """Yield what the offer promised, if it can be read."""
    try:
        offer = read_offer(followed.folder)
    except AssayError:
        return
    safety = offer.safety
    facts = [
        Fact("decision", offer.decision_text()),
        Fact("on time", safety.probability_text(safety.p_on_time)),
        Fact("over budget", safety.probability_text(safety.p_over_budget)),
    ]
    yield Section("As offered", [FactList(facts)])


def _word(computed: Computed[ProgramState]) -> Cell:
    if computed.error:
        return Cell(computed.error.splitlines()[0], "bad")
    verdict = None if computed.value is None or not computed.is_current else computed.value.document.verdict
    return Cell("being computed", "open") if verdict is None else Cell(verdict.word, verdict.tone)


FACTS = (name("decision (P50)"), number("on time"), number("over budget"), number("device-hours spent"), name("as of"))


def _facts_of(computed: Computed[ProgramState]) -> Sequence[str]:
    """Return the texts of the columns `FACTS`."""
    if (state := computed.value) is None:
        return ["—"] * len(FACTS)
    forecast, program = state.view.forecast, state.program
    return (
        program.calendar.date_text(24 * forecast.decision_day.p50),
        forecast.probability_text(forecast.p_on_time),
        forecast.probability_text(forecast.p_over_budget),
        f"{state.view.spent_device_hours:,.4g} of {program.budget.device_hours:,.0f}",
        state.view.now,
    )
