"""The triage overview on a terminal."""

import click

from assay.base.units import days_text, number_of, percent_text
from assay.records.triage_overview import Finding, TriageOverview
from assay.reporting.terminal.formatting import device_hours_text

HOUR_S = 3_600.0


def print_triage_overview(report: TriageOverview) -> None:
    """Print findings by cost, then the checks that could not run."""
    rate = f" ({percent_text(report.failures / report.attempts)})" if report.attempts else ""
    click.secho(
        f"{number_of(report.runs, 'run')}, {report.failures:,} of {number_of(report.attempts, 'attempt')} failed"
        f"{rate}; {device_hours_text(report.device_hours * HOUR_S)} in {days_text(report.days)}",
        bold=True,
    )
    if not report.results:
        click.echo("nothing stands out.")
    for number, finding in enumerate(report.results, start=1):
        sure = "" if finding.is_confirmed else "suspected: "
        click.secho(f"{number}. {_lost_text(finding, report)}", bold=True, nl=False)
        click.secho(f"  {sure}{finding.what}", fg=_colour(finding))
        click.echo(f"   next: {finding.next}")
    for question, reason in report.not_looked_at.items():
        click.echo(f"no finding ({question}): {reason}")


def _colour(finding: Finding) -> str | None:
    """Return the finding's colour; measured device time is not an error."""
    return "yellow" if not finding.is_confirmed else None if finding.about == "spent" else "red"


def _lost_text(finding: Finding, report: TriageOverview) -> str:
    if finding.device_hours_a_week is None:
        return "cost not on record"
    lost = device_hours_text(finding.device_hours_a_week * HOUR_S)
    if report.is_of_weeks:
        return f"{lost} a week"
    return f"{lost} of the {device_hours_text(report.device_hours * HOUR_S)} on record"
