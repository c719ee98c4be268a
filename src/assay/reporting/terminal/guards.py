"""Guards on a terminal."""

from collections.abc import Sequence

import click

from assay.base.clock import utc_text
from assay.base.units import percent_text
from assay.records.guard import GuardStatus


def print_guards(statuses: Sequence[GuardStatus]) -> None:
    """Print each guard and the attempts since it was accepted."""
    if not statuses:
        click.echo("no guard stands. 'assay triage guard DIAGNOSIS' accepts what 'triage failures --json' found.")
    for status in statuses:
        guard = status.guard
        does = "lapsed" if status.has_lapsed else "refuses runs" if guard.is_refusing else "warns of runs"
        click.secho(f"{guard.name}: {does}", fg="green" if status.has_lapsed else "yellow", bold=True)
        click.echo(
            f"  {percent_text(guard.rate)} of attempts on it failed, elsewhere "
            f"{percent_text(guard.elsewhere_rate)}; accepted on {utc_text(guard.accepted_s)} by "
            f"{guard.accepted_by}"
        )
        click.echo(f"  since then: {_since_text(status)}")


def _since_text(status: GuardStatus) -> str:
    if status.since is None:
        return "no attempt on record is on it, so nothing can be said; 'assay triage guard --lift' ends it"
    check = status.since
    return f"{check.failures:,} of {check.attempts:,} attempts on it failed; {check.verdict}: {check.because}"
