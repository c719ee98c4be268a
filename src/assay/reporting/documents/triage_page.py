"""The page of a fleet: what to look at first, and the answers that it follows from."""

from collections.abc import Iterator

from assay.base.clock import utc_text
from assay.base.units import days_text, number_of, percent_text
from assay.decision.sentences import device_time_text
from assay.records.ci_report import CiReport
from assay.records.findings import Finding
from assay.records.startup import Startup
from assay.reporting.charts.triage_figures import rates_figure, scan_figure, seconds_figure, speed_figure
from assay.reporting.documents.document import Block, Document, DocumentSection, Passage, TitledTable
from assay.reporting.views.verdict import Tile, Verdict
from assay.triage.overview import Fleet

HOUR_S = 3_600.0


def triage_document(fleet: Fleet, startup: Startup | None, ci: CiReport | None, *, made_s: float) -> Document:
    """`startup`, `ci`: None where nothing is known of them."""
    found = fleet.findings
    dearest = max(found.findings, key=lambda each: each.device_hours_a_week or 0.0, default=None)
    rate = found.failures / found.attempts if found.attempts else 0.0
    sections = [
        DocumentSection("What to look at first", list(_first(fleet))),
        DocumentSection("Failures", list(_failures(fleet))),
        DocumentSection("Speed", list(_speed(fleet))),
        DocumentSection("Startup", list(_startup(startup))),
        DocumentSection("CI", list(_ci(ci))),
    ]
    return Document(
        name="triage",
        title="Triage",
        kind="fleet",
        made=f"{number_of(found.runs, 'run')} on record, {utc_text(made_s)}",
        verdict=_verdict(found.findings),
        tiles=[
            Tile("attempts that failed", percent_text(rate), f"{found.failures:,} of {found.attempts:,}"),
            Tile("held", device_time_text(found.device_hours * HOUR_S), f"in {days_text(found.days)}"),
            Tile("dearest", "—" if dearest is None else _hours_text(dearest), _lost(fleet)),
        ],
        sections=[section for section in sections if section.blocks],
        foot="Made anew by: assay triage --page FILE. The same facts as JSON: assay triage --json.",
    )


def _verdict(findings: tuple[Finding, ...]) -> Verdict:
    if not findings:
        return Verdict("good", "nothing stands out", "No cause, no rise and no phase costs much device time.")
    faults = [finding for finding in findings if finding.about != "spent"]
    confirmed = sum(fault.is_confirmed for fault in faults)
    word = f"{number_of(confirmed, 'finding')}, {len(faults) - confirmed} suspected"
    return Verdict("bad" if confirmed else "open", word, f"{findings[0].what.rstrip('.')}. Next: {findings[0].next}")


def _first(fleet: Fleet) -> Iterator[Block]:
    yield TitledTable.of(
        "Findings",
        "Failures without a known cause; then confirmed before suspected, the dearest first. Parts overlap.",
        fleet.findings.findings,
        (_lost(fleet), _hours_text),
        ("what", lambda each: each.what),
        ("", _standing),
        ("next", lambda each: each.next),
    )
    for question, why in fleet.findings.not_looked_at.items():
        yield Passage(f"No finding ({question}): {why}")


def _standing(each: Finding) -> str:
    return "suspected" if not each.is_confirmed else "measured" if each.about == "spent" else "confirmed"


def _lost(fleet: Fleet) -> str:
    return "lost a week" if fleet.findings.is_of_weeks else "lost, on record"


def _hours_text(each: Finding) -> str:
    hours = each.device_hours_a_week
    return "not on record" if hours is None else device_time_text(hours * HOUR_S)


def _failures(fleet: Fleet) -> Iterator[Block]:
    table, found = fleet.table, fleet.diagnosis
    if table is None or found is None or not table.failures.sum():
        return
    if table.at_s is not None:
        yield rates_figure(table.at_s, table.failures, table.attempts)
    if found.causes or found.ruled_out:
        yield scan_figure(found)
    else:
        yield Passage(found.because)


def _speed(fleet: Fleet) -> Iterator[Block]:
    if fleet.series is not None and fleet.changes is not None and len(fleet.series.values) > 1:
        yield speed_figure(fleet.series.values, fleet.changes)


def _startup(found: Startup | None) -> Iterator[Block]:
    if found is not None:
        bars = [(name, span.median_s) for name, span in found.spans.items()]
        bars += [("in no part", found.unaccounted_s)] if found.unaccounted_s else []
        yield seconds_figure(
            bars,
            name="From the command to the end of the first step",
            caption=f"Medians of {number_of(found.attempts, 'attempt')}; restarts count from the death before.",
        )


def _ci(found: CiReport | None) -> Iterator[Block]:
    if found is None:
        return
    spans = found.spans
    named = {
        "set-up": spans.setup_s, "call": spans.call_s, "tear-down": spans.teardown_s,
        "outside of tests": spans.outside_s, "idle workers": spans.idle_s,
    }  # fmt: skip
    known = [(name, seconds) for name, seconds in named.items() if seconds is not None]
    if spans.setup_s is None:
        known.insert(0, ("in tests", spans.tests_s))
    yield seconds_figure(known, name="Where CI's time goes", caption=f"Over all files. Flaky: {found.flaky_because}")
    if found.flaky:
        yield TitledTable.of(
            "Tests that flake",
            "",
            found.flaky,
            ("test", lambda each: each.test),
            ("failed", lambda each: percent_text(each.rate)),
            ("95%", lambda each: f"{percent_text(each.low)} to {percent_text(each.high)}"),
        )
