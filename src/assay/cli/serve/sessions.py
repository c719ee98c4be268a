"""`assay serve sessions`: execute the sessions of the Tinker API."""

import click

from assay.cli.command import Command
from assay.cli.parameters import WORKERS, current_home, log_format_option
from assay.elastic.workers import Workers

DAY_S = 86_400.0


@click.command(cls=Command, sections={"Operation": ("lease_s", "log_format")})
@click.option(
    "--workers", type=WORKERS, default=1, metavar="N|A..B", help="Number of ranks, or a range: as many as fit."
)
@click.option(
    "--commit-after",
    "commit_after_s",
    type=click.FloatRange(min=0),
    default=60.0,
    help="Store a model once executing its requests again would take this many seconds.",
)
@click.option(
    "--every",
    "interval_s",
    type=click.FloatRange(min=0.01, max=2.0),
    default=0.25,
    help="Longest polling interval in seconds.",
)
@click.option(
    "--lease",
    "lease_s",
    type=click.FloatRange(min=1),
    default=20.0,
    help="Seconds of silence after which another worker takes over.",
)
@click.option(
    "--silent-days",
    type=click.FloatRange(min=0.1),
    default=7.0,
    help="Days without a sign of its client after which a session counts as finished.",
)
@click.option(
    "--keep-days",
    type=click.FloatRange(min=0),
    default=30.0,
    help="Days after which requests and unnamed states of finished sessions are removed.",
)
@log_format_option
def sessions(
    workers: Workers, commit_after_s: float, interval_s: float, lease_s: float, silent_days: float, keep_days: float
) -> None:
    """Train and sample the sessions of the Tinker API in $ASSAY_HOME/api on this machine, until stopped.

    A session is executed by one such process at a time, on all of its ranks. Process and ranks may be killed at any
    moment: the newest stored state of each model is restored, and the requests after it are executed again, with the
    same bits at any number of ranks.
    """
    from assay.workers.sessions.forks import rank_context

    rank_context()  # its imports take as long as those of the next line
    from assay.workers.sessions.process import run_sessions

    run_sessions(
        current_home(),
        workers,
        commit_after_s=commit_after_s,
        lease_s=lease_s,
        interval_s=interval_s,
        silent_s=DAY_S * silent_days,
        keep_s=DAY_S * keep_days,
        notify=lambda text: click.echo(text, err=True),
    )
