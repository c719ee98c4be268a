"""The document of what happens in a home now."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from assay.base.clock import utc_text
from assay.base.units import age_text, number_of
from assay.reporting.document import (
    Block,
    Cell,
    Document,
    Fact,
    Listing,
    Paragraph,
    Section,
    Text,
    TitledTable,
    Tone,
    Verdict,
    name,
    number,
)
from assay.reporting.documents.runs.run_list import runs_table
from assay.reporting.values import device_hours_text, minute_text
from assay.reporting.views.now import Attention, FailedRun
from assay.reporting.views.runs.run_list import RunLine

MAX_ROWS = 50
"""Rows of a table; the title says how many there are."""


class DeviceHours(NamedTuple):
    """Device-hours of a day until now."""

    ended: float
    """Held by attempts that have ended."""
    running: float
    """Held so far by attempts that run."""
    planned: float | None = None
    """By the plans of all programs, until now; None without a program."""
    planned_today: float | None = None

    @property
    def held(self) -> float:
        """The sum of both."""
        return self.ended + self.running


class Now(NamedTuple):
    """What happens in a home."""

    running: Sequence[RunLine]
    waiting: TitledTable | None
    """Jobs in the queue, each with its place and reason."""
    num_waiting: int
    failed: Sequence[FailedRun]
    causes: Mapping[str, str]
    """Confirmed causes by run."""
    shared_failures: Sequence[str]
    """What failures have in common."""
    attention: Sequence[Attention]
    device_hours: DeviceHours | None
    """None while it is computed."""
    first_steps: Sequence[str] = ()
    """What to do first in an empty home."""
    programs: Sequence[str] = ()
    """The command that shows the status of each program."""


def now_document(now: Now, *, now_s: float, address: Callable[[str, str], str]) -> Document:
    """Return the page. `address`: of what an `Attention` is about, by kind and name."""
    sections = [
        Section("First steps", [Listing(now.first_steps)]) if now.first_steps else None,
        Section("Needs a person", [_attention(now.attention, address)]) if now.attention else None,
        Section("Running", [_running(now.running, now_s, address)]),
        Section("Waiting", [now.waiting or Paragraph("Nothing waits.")]),
        Section("Failed since yesterday", list(_failed(now, now_s, address))),
    ]
    today = utc_text(now_s)[:10]
    of_today = f"assay runs goodput --by day --from {today} --to {today}"
    commands = ["assay runs list", "assay decide list", of_today, "assay triage overview", *now.programs]
    return Document(
        name="now",
        title="Now",
        kind="now",
        subtitle=utc_text(now_s),
        verdict=_now_verdict(now),
        tiles=list(_now_tiles(now)),
        sections=[section for section in sections if section is not None],
        footer=f"The same as JSON: {'; '.join(f'{command} --json' for command in commands)}; GET /v1/fine_tuning/jobs",
    )


def _now_verdict(now: Now) -> Verdict:
    bad = sum(item.is_bad for item in now.attention)
    tone: Tone = "bad" if now.failed or bad else "open" if now.attention or not now.running else "good"
    counts = [
        (len(now.attention), number_of(len(now.attention), "matter needs", "matters need") + " a person"),
        (len(now.running), f"{number_of(len(now.running), 'run')} at work"),
        (now.num_waiting, f"{number_of(now.num_waiting, 'job')} waiting"),
        (len(now.failed), f"{number_of(len(now.failed), 'run')} failed since yesterday"),
    ]
    present = ", ".join(text for count, text in counts if count)
    word = "act" if tone == "bad" else "look" if now.attention else "running" if now.running else "idle"
    return Verdict(tone, word, f"{present or 'Nothing runs, waits or needs a person'}.")


def _now_tiles(now: Now) -> Iterator[Fact]:
    yield Fact("running", str(len(now.running)), number_of(sum(_ranks_of(line) for line in now.running), "rank"))
    yield Fact("waiting", str(now.num_waiting), "jobs in the queue")
    yield Fact("failed", str(len(now.failed)), "since yesterday")
    hours = now.device_hours
    if hours is None:
        yield Fact("device time today", "…", "being computed")
    else:
        plan = "no program has a plan"
        if hours.planned is not None:
            plan = f"planned until now: {hours.planned:,.4g}; for the whole day: {hours.planned_today or 0.0:,.4g}"
        still = f"{device_hours_text(3600 * hours.running)} of it by attempts that run; {plan}"
        yield Fact("device time today", device_hours_text(3600 * hours.held), f"since 00:00 UTC; {still}")
    yield Fact("needs a person", str(len(now.attention)), "")


def _ranks_of(line: RunLine) -> int:
    return line.world_sizes[-1] if line.world_sizes else 0


def _title(shown: Sequence[object]) -> str:
    return f"The first {MAX_ROWS} of {len(shown):,}." if len(shown) > MAX_ROWS else ""


def _attention(matters: Sequence[Attention], address: Callable[[str, str], str]) -> Block:
    ranked = sorted(matters, key=lambda item: not item.is_bad)
    return TitledTable.of(
        "",
        _title(ranked),
        ranked[:MAX_ROWS],
        (name("what"), lambda item: Cell(item.about, "bad" if item.is_bad else "open")),
        (name("of"), lambda item: Cell(item.name, link=address(item.about, item.name))),
        ("why", lambda item: item.text),
    )


def _running(lines: Sequence[RunLine], now_s: float, address: Callable[[str, str], str]) -> Block:
    if not lines:
        return Paragraph("No run is at work.")
    shown = lines[:MAX_ROWS]
    return TitledTable(
        "", _title(lines), runs_table(shown, now_s=now_s, address=lambda line: address("run", line.run_id))
    )


def _failed(now: Now, now_s: float, address: Callable[[str, str], str]) -> Iterator[Block]:
    def cause(run: FailedRun) -> Text:
        found = now.causes.get(run.line.run_id)
        return Cell(found, "bad") if found else run.symptom.replace("_", " ")

    if not now.failed:
        yield Paragraph("No run ended badly.")
        return
    yield TitledTable.of(
        "",
        _title(now.failed),
        now.failed[:MAX_ROWS],
        (name("run"), lambda run: Cell(run.line.run_id, link=address("run", run.line.run_id))),
        (name("status"), lambda run: Cell(run.line.status_text(), "bad")),
        ("cause", cause),
        ("what was seen", lambda run: run.reason),
        (number("step"), lambda run: f"{run.line.step:,}/{run.line.total_steps:,}"),
        (number("ended (UTC)"), lambda run: minute_text(run.ended_s)),
        (number("ago"), lambda run: age_text(now_s - run.ended_s)),
    )
    if now.shared_failures:
        yield Listing(now.shared_failures, title="What failures have in common (assay triage overview)")
