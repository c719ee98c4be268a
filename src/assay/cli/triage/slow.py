"""`assay triage slow`, `skew`, `startup`: what became slower, which worker lags, and time before the first
step."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.base.errors import ConfigError
from assay.cli.command import Command
from assay.cli.parameters import RUN, SOURCE_PATH, current_home, json_option, ledger_with_runs
from assay.cli.triage.ab_test import LEAST, MEASURING, compare_and_print, measuring_options, reject_options
from assay.cli.triage.parameters import SOURCES, names_in, print_result

if TYPE_CHECKING:
    from assay.triage.slow.series import MeasuredSeries, SeriesNames

LEAST_LASTING = 0.005
"""Default smallest change of a series, as a share."""


_SLOW_SECTIONS = {
    "Table": (
        "value",
        "at",
        "factors",
        "phases",
    ),
    "Runs of --ab": MEASURING,
}


@click.command(cls=Command, sections=_SLOW_SECTIONS)
@SOURCES
@click.option("--value", metavar="COL", help="Column with the measured value; for the ledger's runs, seconds per step.")
@click.option("--at", metavar="COL", help="Column with the time: epoch seconds, or ISO 8601; by default the row order.")
@click.option("--factors", metavar="A,B,...", help="Columns that may be the cause; by default all others.")
@click.option("--phases", metavar="A,B,...", help="Columns that add up to the value.")
@click.option(
    "--effect",
    "least",
    type=float,
    help=f"Smallest change to detect, as a share of the level; by default {LEAST_LASTING}, with --ab {LEAST}.",
)
@click.option(
    "--ab",
    nargs=2,
    metavar="A B",
    help="Run two commits, datasets or recipes alternately instead, with SOURCE as the recipe; for two recipes it "
    "is their common base, or left out.",
)
@measuring_options
@json_option
def slow(
    sources: tuple[Path, ...],
    value: str | None,
    at: str | None,
    factors: str | None,
    phases: str | None,
    least: float | None,
    ab: tuple[str, str] | None,
    as_json: bool,
    **measuring: Any,
) -> None:
    """Find lasting changes in step time or another value, the phase that grew, and the factor that caused it.

    A factor is the cause if it changed alone, or if runs with crossed factors show it: this code elsewhere,
    other code here. A SOURCE is any table that 'triage failures' reads; without one, the runs of the ledger are
    used. With --ab no table is read: A and B run until it is clear whether B is slower; the options from
    --workers to --seed apply only then. The runs are real, and nothing of them is recorded in the home.
    """
    context = click.get_current_context()
    if ab is not None:
        reject_options(
            context, ("value", "at", "factors", "phases"), "these options describe a table, and --ab reads none"
        )
        compare_and_print(*ab, sources, least=least, as_json=as_json, **measuring)
        return
    reject_options(context, MEASURING, "these options need --ab A B")
    least = LEAST_LASTING if least is None else least
    from assay.triage.slow.explain import explain_changes
    from assay.triage.slow.series import SeriesNames

    names = SeriesNames(value, at, names_in(factors), names_in(phases))
    found = explain_changes(_series(sources, names), least=least)
    print_result(found, as_json=as_json)


@click.command()
@click.argument("sources", nargs=-1, type=SOURCE_PATH, metavar="SOURCE...", required=True)
@click.option("--value", metavar="COL", required=True, help="Column with the duration of a rank's own work.")
@click.option(
    "--location", metavar="A,B,...", required=True, help="Columns that identify the place, e.g. stage, worker."
)
@click.option(
    "--work", metavar="C,D,...", required=True, help="Columns that identify the work, e.g. step, micro-batch."
)
@click.option(
    "--kind", metavar="COL", help="Column with the kind, e.g. forward, backward; kinds are analyzed separately."
)
@json_option
def skew(sources: tuple[Path, ...], value: str, location: str, work: str, kind: str | None, as_json: bool) -> None:
    """Decide whether durations of one run differ by location (a slow worker) or by work (uneven batches).

    A collective makes all ranks wait for the slowest: use durations of compute only.
    """
    from assay.triage.attempts.sources import read_sources
    from assay.triage.skew import durations_of, split_skew

    sides = {"location": names_in(location) or (), "work": names_in(work) or ()}
    durations = durations_of(read_sources(sources), value=value, kind=kind, **sides)
    found = split_skew(durations)
    print_result(found, as_json=as_json)


@click.command()
@click.argument("runs", nargs=-1, type=RUN, metavar="[RUN]...")
@click.option("--against", type=RUN, metavar="RUN", help="Run that started faster, to show which part grew.")
@json_option
def startup(runs: tuple[str, ...], against: str | None, as_json: bool) -> None:
    """Show where the time before the first step goes for RUNs, by default all runs on record.

    It counts from the command, or the death of the attempt before, to the end of the first step; each second
    belongs to exactly one part, or is listed as unexplained.
    """
    from assay.triage.startup import startup_of
    from assay.workflows.run import load_run

    home = current_home()
    chosen = [load_run(home, run_id) for run_id in runs] or [run for run in home.runs() if not run.is_drill]
    if not chosen:
        raise ConfigError(f"there are no runs in {home.folder}. Check $ASSAY_HOME.")
    found = startup_of(chosen, None if against is None else load_run(home, against))
    print_result(found, as_json=as_json)


def _series(sources: tuple[Path, ...], names: "SeriesNames") -> "MeasuredSeries":
    if sources:
        from assay.triage.attempts.sources import read_sources
        from assay.triage.slow.series import series_of

        return series_of(read_sources(sources), names)
    from assay.triage.slow.series import ledger_series

    with ledger_with_runs(current_home()) as ledger:
        return ledger_series(ledger, names)
