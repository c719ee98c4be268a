"""Guards on a terminal: what each keeps runs from, and whether it still stands."""

from collections.abc import Sequence

import click

from assay.base.clock import utc_text
from assay.base.units import percent_text
from assay.records.guard import GuardStanding


def print_guards(standings: Sequence[GuardStanding]) -> None:
    """One after another; those that lapsed are said to have."""
    if not standings:
        click.echo("no guard stands. 'assay triage guard DIAGNOSIS' accepts what 'triage failures --json' found.")
    for standing in standings:
        guard = standing.guard
        does = "lapsed" if standing.has_lapsed else "refuses runs" if guard.is_refusing else "warns of runs"
        click.secho(f"{guard.name}: {does}", fg="green" if standing.has_lapsed else "yellow", bold=True)
        click.echo(
            f"  {percent_text(guard.rate)} of attempts on it failed, elsewhere "
            f"{percent_text(guard.elsewhere_rate)}; accepted on {utc_text(guard.accepted_s)} by "
            f"{guard.accepted_by}"
        )
        click.echo(f"  since then: {_since_text(standing)}")


def _since_text(each: GuardStanding) -> str:
    if each.since is None:
        return "no attempt on record is on it, so nothing can be said; 'assay triage guard --lift' ends it"
    found = each.since
    return f"{found.failures:,} of {found.attempts:,} attempts on it failed; {found.verdict}: {found.because}"
