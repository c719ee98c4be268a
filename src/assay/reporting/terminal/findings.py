"""What to look at first, on a terminal."""

import click

from assay.base.units import days_text, number_of, percent_text
from assay.records.findings import Finding, TriageFindings
from assay.reporting.terminal.formatting import device_hours_text

HOUR_S = 3_600.0


def print_findings(found: TriageFindings) -> None:
    """The dearest first; what could not be asked is said."""
    rate = f" ({percent_text(found.failures / found.attempts)})" if found.attempts else ""
    click.secho(
        f"{number_of(found.runs, 'run')}, {found.failures:,} of {number_of(found.attempts, 'attempt')} failed"
        f"{rate}; {device_hours_text(found.device_hours * HOUR_S)} in {days_text(found.days)}",
        bold=True,
    )
    if not found.findings:
        click.echo("nothing stands out.")
    for number, each in enumerate(found.findings, start=1):
        sure = "" if each.is_confirmed else "suspected: "
        click.secho(f"{number}. {_lost_text(each, found)}", bold=True, nl=False)
        click.secho(f"  {sure}{each.what}", fg=_colour(each))
        click.echo(f"   next: {each.next}")
    for question, why in found.not_looked_at.items():
        click.echo(f"no finding ({question}): {why}")


def _colour(each: Finding) -> str | None:
    """What time went into is no fault."""
    return "yellow" if not each.is_confirmed else None if each.about == "spent" else "red"


def _lost_text(each: Finding, found: TriageFindings) -> str:
    if each.device_hours_a_week is None:
        return "cost not on record"
    lost = device_hours_text(each.device_hours_a_week * HOUR_S)
    if found.is_of_weeks:
        return f"{lost} a week"
    return f"{lost} of the {device_hours_text(found.device_hours * HOUR_S)} on record"
