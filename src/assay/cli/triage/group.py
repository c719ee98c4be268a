"""`assay triage`: the group of commands, and the overview without one."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.parameters import (
    OUT_PAGE,
    SOURCE_PATH,
    CommandGroup,
    current_home,
    force_option,
    ledger_with_runs,
)
from assay.cli.triage.ab_test import bisect
from assay.cli.triage.case import case
from assay.cli.triage.ci import ci
from assay.cli.triage.data import data
from assay.cli.triage.failures import failures, fixed
from assay.cli.triage.guard import guard
from assay.cli.triage.parameters import JSON
from assay.cli.triage.slow import skew, slow, startup
from assay.cli.triage.symptoms import hang, symptoms

if TYPE_CHECKING:
    from assay.triage.overview import Fleet

MOST_STARTS = 100
"""Maximum number of runs, the newest, whose startup is read for a page."""


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--page", type=OUT_PAGE, help="Write the overview as an HTML page.")
@force_option
@click.option(
    "--junit", multiple=True, type=SOURCE_PATH, help="With --page: CI results, as for 'triage ci'. May be repeated."
)
@JSON
@click.pass_context
def triage(context: click.Context, page: Path | None, junit: tuple[Path, ...], as_json: bool) -> None:
    """Find out why attempts fail, what their logs show, what symptoms share, what slowed down or hangs, which
    data changed, where startup and CI lose time, and whether a fix worked; keep runs away from broken parts.

    Without a command: what to look at first, over all runs on record, by device-hours lost per week.
    """
    if context.invoked_subcommand is not None:
        if page is not None or as_json:
            raise ConfigError(f"put --page and --json after '{context.invoked_subcommand}', if it has them.")
        return
    if junit and page is None:
        raise ConfigError("--junit needs --page FILE.")
    from assay.reporting.terminal.triage_overview import print_triage_overview
    from assay.triage.overview import triage_ledger

    with ledger_with_runs(current_home()) as ledger:
        fleet = triage_ledger(ledger)
    if page is not None:
        _write_page(fleet, page, junit)
    if as_json:
        click.echo(fleet.overview.to_json())
    else:
        print_triage_overview(fleet.overview)


def _write_page(fleet: "Fleet", page: Path, junit: tuple[Path, ...]) -> None:
    from assay.reporting.documents.render import render_document, write_file
    from assay.reporting.documents.triage_page import triage_document
    from assay.triage.ci.recorded import read_recorded
    from assay.triage.ci.report import report_of
    from assay.triage.startup import startup_of

    ci_report = report_of(read_recorded(junit, commit=None, path=None), None) if junit else None
    newest = sorted(current_home().runs(), key=lambda run: -run.created_s)
    try:
        startup = startup_of([run for run in newest if not run.is_drill][:MOST_STARTS], None)
    except ConfigError:  # none of them reached a step
        startup = None
    document = triage_document(fleet, startup, ci_report, created_s=SystemClock().now_s())
    write_file(page, render_document(document))
    click.echo(f"page: {page}", err=True)


for command in (failures, symptoms, case, fixed, guard, slow, bisect, skew, hang, startup, data, ci):
    triage.add_command(command)
