"""What to look at first, on a terminal."""

import click

from assay.base.units import number_of, percent_text
from assay.cli.screens.words import device_hours_text
from assay.records.findings import TriageFindings

HOUR_S = 3_600.0


def print_findings(found: TriageFindings) -> None:
    """The dearest first; what could not be asked is said."""
    rate = f" ({percent_text(found.failures / found.attempts)})" if found.attempts else ""
    click.secho(
        f"{number_of(found.runs, 'run')}, {found.failures:,} of {number_of(found.attempts, 'attempt')} failed"
        f"{rate}; {device_hours_text(found.device_hours * HOUR_S)} in {found.days:,.1f} days",
        bold=True,
    )
    if not found.findings:
        click.echo("nothing stands out.")
    for number, each in enumerate(found.findings, start=1):
        hours = each.device_hours_a_week
        lost = "cost not on record" if hours is None else f"{device_hours_text(hours * HOUR_S)} a week"
        sure = "" if each.is_confirmed else "suspected: "
        click.secho(f"{number}. {lost}", bold=True, nl=False)
        click.secho(f"  {sure}{each.what}", fg="red" if each.is_confirmed else "yellow")
        click.echo(f"   next: {each.next}")
    for question, why in found.not_looked_at.items():
        click.echo(f"not looked at: {question}: {why}")
