"""The triage page: findings, failures, speed, startup and CI of all runs."""

from collections.abc import Iterator

from assay.base.clock import utc_text
from assay.base.units import days_text, number_of, percent_text
from assay.decision.sentences import device_time_text
from assay.records.ci_report import CiReport
from assay.records.startup import Startup
from assay.records.triage_overview import Finding
from assay.reporting.charts.triage_figures import rates_figure, scan_figure, seconds_figure, speed_figure
from assay.reporting.document import Block, Document, Fact, Paragraph, Section, TitledTable, Verdict
from assay.triage.overview import Fleet

HOUR_S = 3_600.0


def triage_document(fleet: Fleet, startup: Startup | None, ci: CiReport | None, *, created_s: float) -> Document:
    """Return the page. `startup` and `ci` are None if there are no such records."""
    overview = fleet.overview
    dearest = max(overview.results, key=lambda finding: finding.device_hours_a_week or 0.0, default=None)
    rate = overview.failures / overview.attempts if overview.attempts else 0.0
    sections = [
        Section("What to look at first", list(_first(fleet))),
        Section("Failures", list(_failures(fleet))),
        Section("Speed", list(_speed(fleet))),
        Section("Startup", list(_startup(startup))),
        Section("CI", list(_ci(ci))),
    ]
    return Document(
        name="triage",
        title="Triage",
        kind="fleet",
        subtitle=f"{number_of(overview.runs, 'run')} on record, {utc_text(created_s)}",
        verdict=_verdict(overview.results),
        tiles=[
            Fact("attempts that failed", percent_text(rate), f"{overview.failures:,} of {overview.attempts:,}"),
            Fact("held", device_time_text(overview.device_hours * HOUR_S), f"in {days_text(overview.days)}"),
            Fact("dearest", "—" if dearest is None else _hours_text(dearest), _lost(fleet)),
        ],
        sections=[section for section in sections if section.blocks],
        footer="Regenerate with: assay triage --page FILE. The same facts as JSON: assay triage --json.",
    )


def _verdict(ranked: tuple[Finding, ...]) -> Verdict:
    if not ranked:
        return Verdict("good", "nothing stands out", "No cause, no rise and no phase costs much device time.")
    faults = [finding for finding in ranked if finding.about != "spent"]
    confirmed = sum(fault.is_confirmed for fault in faults)
    word = f"{number_of(confirmed, 'finding')}, {len(faults) - confirmed} suspected"
    return Verdict("bad" if confirmed else "open", word, f"{ranked[0].what.rstrip('.')}. Next: {ranked[0].next}")


def _first(fleet: Fleet) -> Iterator[Block]:
    yield TitledTable.of(
        "Findings",
        "Failures without a known cause; then confirmed before suspected, the dearest first. Parts overlap.",
        fleet.overview.results,
        (_lost(fleet), _hours_text),
        ("what", lambda finding: finding.what),
        ("", _confirmation),
        ("next", lambda finding: finding.next),
    )
    for question, reason in fleet.overview.not_looked_at.items():
        yield Paragraph(f"No finding ({question}): {reason}")


def _confirmation(finding: Finding) -> str:
    return "suspected" if not finding.is_confirmed else "measured" if finding.about == "spent" else "confirmed"


def _lost(fleet: Fleet) -> str:
    return "lost a week" if fleet.overview.is_of_weeks else "lost, on record"


def _hours_text(finding: Finding) -> str:
    hours = finding.device_hours_a_week
    return "not on record" if hours is None else device_time_text(hours * HOUR_S)


def _failures(fleet: Fleet) -> Iterator[Block]:
    table, diagnosis = fleet.table, fleet.diagnosis
    if table is None or diagnosis is None or not table.failures.sum():
        return
    if table.at_s is not None:
        yield rates_figure(table.at_s, table.failures, table.attempts)
    if diagnosis.causes or diagnosis.ruled_out:
        yield scan_figure(diagnosis)
    else:
        yield Paragraph(diagnosis.because)


def _speed(fleet: Fleet) -> Iterator[Block]:
    if fleet.series is not None and fleet.changes is not None and len(fleet.series.values) > 1:
        yield speed_figure(fleet.series.values, fleet.changes)


def _startup(startup: Startup | None) -> Iterator[Block]:
    if startup is not None:
        bars = [(name, span.median_s) for name, span in startup.spans.items()]
        bars += [("in no part", startup.unaccounted_s)] if startup.unaccounted_s else []
        yield seconds_figure(
            bars,
            name="From the command to the end of the first step",
            caption=f"Medians of {number_of(startup.attempts, 'attempt')}; restarts count from the death before.",
        )


def _ci(report: CiReport | None) -> Iterator[Block]:
    if report is None:
        return
    spans = report.spans
    named = {
        "set-up": spans.setup_s, "call": spans.call_s, "tear-down": spans.teardown_s,
        "outside of tests": spans.outside_s, "idle workers": spans.idle_s,
    }  # fmt: skip
    known = [(name, seconds) for name, seconds in named.items() if seconds is not None]
    if spans.setup_s is None:
        known.insert(0, ("in tests", spans.tests_s))
    yield seconds_figure(known, name="Where CI's time goes", caption=f"Over all files. Flaky: {report.flaky_because}")
    if report.flaky:
        yield TitledTable.of(
            "Tests that flake",
            "",
            report.flaky,
            ("test", lambda test: test.test),
            ("failed", lambda test: percent_text(test.rate)),
            ("95%", lambda test: f"{percent_text(test.low)} to {percent_text(test.high)}"),
        )
