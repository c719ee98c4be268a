"""`assay triage`: the group of commands, and the overview without one."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.command import CommandGroup
from assay.cli.parameters import OUT_PAGE, RUN, SOURCE_PATH, current_home, force_option, json_option, ledger_with_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.reporting.views.runs.run import RunView
    from assay.triage.overview import Fleet

MOST_STARTS = 100
"""Maximum number of runs, the newest, whose startup is read for a page."""


_MODULES = {
    "overview": ("assay.cli.triage.group", "Show what happened, and what cost most (default)."),
    "failures": ("assay.cli.triage.failures", "Find what failed attempts have in common."),
    "symptoms": ("assay.cli.triage.symptoms", "Find the line at which each log or run failed; group failures."),
    "fixed": ("assay.cli.triage.failures", "Test whether attempts fail less often since a time."),
    "guard": ("assay.cli.triage.guard", "Warn about runs that match a known cause, or reject them."),
    "slow": ("assay.cli.triage.slow", "Find lasting changes in speed, and their cause."),
    "bisect": ("assay.cli.triage.ab_test", "Find the commit that made a recipe slower or faster."),
    "skew": ("assay.cli.triage.slow", "Decide whether a worker is slow, or its work uneven."),
    "hang": ("assay.cli.triage.symptoms", "List the ranks that others wait for in a collective."),
    "startup": ("assay.cli.triage.slow", "Show where the time before the first step goes."),
    "data": ("assay.cli.triage.data", "Show what changed between two datasets, runs or files."),
    "ci": ("assay.cli.triage.ci", "Show where CI spends time, and which tests are flaky."),
}


@click.group(cls=CommandGroup, modules=_MODULES, default="overview")
def triage() -> None:
    """Find out why runs fail, hang or slow down, which data changed, and whether a fix worked.

    Without a command: what happened to the runs on record, or to the RUNs given.
    """


@triage.command()
@click.argument("run_ids", metavar="[RUN]...", type=RUN, nargs=-1)
@click.option("--out", "page", type=OUT_PAGE, help="HTML page to write.")
@force_option
@click.option(
    "--junit", multiple=True, type=SOURCE_PATH, help="With --out: CI results, as for 'triage ci'. May be repeated."
)
@json_option
def overview(run_ids: tuple[str, ...], page: Path | None, junit: tuple[Path, ...], as_json: bool) -> None:
    """Show what happened to a few runs, or of many what to look at first, by device-hours lost per week.

    RUN: a run to look at; by default all runs on record.
    """
    if junit and page is None:
        raise ConfigError("--junit needs --out FILE.")
    from assay.reporting.views.runs.run import run_view
    from assay.triage.overview import triage_ledger

    with ledger_with_runs(current_home(), *run_ids) as ledger:
        fleet = triage_ledger(ledger, run_ids)
        is_shown = page is not None or not as_json
        runs = [run_view(ledger, run_id) for run_id in fleet.overview.run_ids] if is_shown else []
    if page is not None:
        _write_page(fleet, runs, page, junit)
    if as_json:
        click.echo(fleet.overview.to_json())
        return
    from assay.reporting.documents.triage import fleet_document
    from assay.reporting.terminal.document import print_document

    print_document(fleet_document(fleet, runs))


def _write_page(fleet: "Fleet", runs: "Sequence[RunView]", page: Path, junit: tuple[Path, ...]) -> None:
    from assay.reporting.documents.render import render_document, write_file
    from assay.reporting.documents.triage import fleet_document
    from assay.triage.ci.recorded import read_recorded
    from assay.triage.ci.report import report_of
    from assay.triage.startup import startup_of

    ci_report = report_of(*read_recorded(junit, commit=None, path=None), None) if junit else None
    newest = sorted(current_home().runs(), key=lambda run: -run.created_s)
    try:
        startup = startup_of([run for run in newest if not run.is_drill][:MOST_STARTS], None)
    except ConfigError:  # none of them reached a step
        startup = None
    document = fleet_document(fleet, runs, startup, ci_report, created_s=SystemClock().now_s())
    write_file(page, render_document(document))
    click.echo(f"page: {page}", err=True)
