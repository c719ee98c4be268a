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
from assay.cli.triage.parameters import JSON

if TYPE_CHECKING:
    from assay.triage.overview import Fleet

MOST_STARTS = 100
"""Maximum number of runs, the newest, whose startup is read for a page."""


_MODULES = {
    "overview": "assay.cli.triage.group",
    "failures": "assay.cli.triage.failures",
    "symptoms": "assay.cli.triage.symptoms",
    "fixed": "assay.cli.triage.failures",
    "guard": "assay.cli.triage.guard",
    "slow": "assay.cli.triage.slow",
    "bisect": "assay.cli.triage.ab_test",
    "skew": "assay.cli.triage.slow",
    "hang": "assay.cli.triage.symptoms",
    "startup": "assay.cli.triage.slow",
    "data": "assay.cli.triage.data",
    "ci": "assay.cli.triage.ci",
}


@click.group(cls=CommandGroup, modules=_MODULES, default="overview")
def triage() -> None:
    """Find out why runs fail, hang or slow down, which data changed, and whether a fix worked.

    Without a command: the overview of all runs on record.
    """


@triage.command()
@click.option("--page", type=OUT_PAGE, help="Write the overview as an HTML page.")
@force_option
@click.option(
    "--junit", multiple=True, type=SOURCE_PATH, help="With --page: CI results, as for 'triage ci'. May be repeated."
)
@JSON
def overview(page: Path | None, junit: tuple[Path, ...], as_json: bool) -> None:
    """Show what to look at first, over all runs on record, by device-hours lost per week."""
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
