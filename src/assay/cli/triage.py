"""`assay triage`: why runs fail, hang, become slower or start late, what changed in data, what a fix did."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.errors import ConfigError
from assay.cli.given import RUN, SOURCE_PATH, CommandGroup, found_ledger, given_home

if TYPE_CHECKING:
    from assay.triage.attempts.build import ColumnNames
    from assay.triage.attempts.table import AttemptTable
    from assay.triage.slow.series import MeasuredSeries, SeriesNames


@click.group(cls=CommandGroup)
def triage() -> None:
    """Say why attempts fail, over all runs or any table, what their logs name, what became slower or hangs,
    which data changed, where startup and CI lose time, and whether a fix worked."""


_SOURCES = click.argument("sources", nargs=-1, type=SOURCE_PATH, metavar="[SOURCE]...")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/json.md).")


def _columns(command: click.decorators.FC) -> click.decorators.FC:
    """The options that say what a table's columns are."""
    for option in reversed(
        (
            click.option(
                "--failed", metavar="COL", help="1 where the attempt failed, else 0; a count with --attempts."
            ),
            click.option("--attempts", metavar="COL", help="How many attempts a row stands for."),
            click.option("--at", metavar="COL", help="When: epoch seconds, or ISO 8601."),
            click.option("--unit", metavar="COL", help="What fails alike: the recipe without its seed."),
        )
    ):
        command = option(command)
    return command


@triage.command()
@_SOURCES
@_columns
@click.option("--factors", metavar="A,B,...", help="Columns that may be at fault; else all others.")
@click.option("--window", metavar="FROM..TO", help="Only attempts of this time, half open.")
@click.option("--baseline", metavar="FROM..TO", help="The time before, which the window is held against.")
@click.option("--exposure", metavar="COL", help="Rates per this instead of per attempt, e.g. device-hours.")
@_JSON
def failures(
    sources: tuple[Path, ...],
    failed: str | None,
    attempts: str | None,
    at: str | None,
    unit: str | None,
    factors: str | None,
    window: str | None,
    baseline: str | None,
    exposure: str | None,
    as_json: bool,
) -> None:
    """Name what failed attempts have in common: host, image, recipe key, dataset, commit, up to three together.

    A SOURCE is CSV, Parquet, JSONL, what sacct (--parsable2, --json) or Slurm's job completion wrote, pods
    of kubectl, JUnit XML or GitHub's jobs, told apart by content; without one, the attempts of all runs. A
    cell n01|n02 holds two values."""
    from assay.triage.attempts.build import ColumnNames
    from assay.triage.attempts.moments import window as given_window

    names = ColumnNames(failed, attempts, at, unit, exposure, _names_in(factors))
    times = [
        given_window(text, f"--{name}") if text else None
        for name, text in (("window", window), ("baseline", baseline))
    ]
    import numpy as np

    from assay.cli.screens.triage import print_diagnosis
    from assay.triage.failures.diagnose import diagnose

    table = _table(sources, names)
    found = diagnose(table, window=times[0], baseline=times[1], rng=np.random.default_rng(0))
    if as_json:
        click.echo(found.to_json())
    else:
        print_diagnosis(found)


@triage.command()
@click.argument("logs", nargs=-1, type=SOURCE_PATH, metavar="LOG...", required=True)
@_JSON
def symptoms(logs: tuple[Path, ...], as_json: bool) -> None:
    """Name the line at which each LOG failed, of which class that is, and which failures are alike.

    A LOG is any text: of a rank, a job, a scheduler, a CI run. A folder holds the logs of one attempt's ranks:
    what only lost its peer there, or was put away, is told from what began it."""
    from assay.cli.screens.triage import print_symptoms
    from assay.triage.symptoms.together import read_symptoms

    found = read_symptoms(logs)
    if as_json:
        click.echo(found.to_json())
    else:
        print_symptoms(found)


@triage.command()
@_SOURCES
@_columns
@click.option("--since", metavar="T", required=True, help="When it was mended: epoch seconds, or ISO 8601.")
@click.option(
    "--where", multiple=True, metavar="COL=VALUE", help="Only these attempts, e.g. host=n12; may be repeated."
)
@_JSON
def fixed(
    sources: tuple[Path, ...],
    failed: str | None,
    attempts: str | None,
    at: str | None,
    unit: str | None,
    since: str,
    where: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say whether attempts fail less often since a moment; may be asked after every attempt.

    It is fixed once the evidence reaches 20 against the least that the old rate may have been: wrongly in
    at most 5%, however often it is asked."""
    from assay.triage.attempts.build import ColumnNames
    from assay.triage.attempts.moments import moment

    since_s = moment(since, "--since")
    wanted = [_given_value(text) for text in where]
    from assay.cli.screens.triage import print_fix_check
    from assay.triage.attempts.select import with_values
    from assay.triage.failures.fixed import check_fix

    names = ColumnNames(
        failed, attempts, at, unit, None, tuple(dict.fromkeys(name for name, _ in wanted)) or None
    )
    found = check_fix(with_values(_table(sources, names), wanted), since_s)
    if as_json:
        click.echo(found.to_json())
    else:
        print_fix_check(found)


@triage.command()
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@_JSON
def data(before: str, after: str, as_json: bool) -> None:
    """Name what changed from the data BEFORE to the data AFTER, and by how much.

    Either is a dataset, a run (its dataset), or Parquet, Arrow, CSV or JSON lines. Beside what columns show
    (missing, unseen, shares, units, distributions): copies, lengths and cuts, the template around texts, token
    ids, the mask of the loss, labels that no longer fit. Each needs a size, not only a p-value."""
    paths = _rows_path(before), _rows_path(after)
    import numpy as np

    from assay.cli.screens.triage import print_data_changes
    from assay.triage.data.compare import compare_data

    found = compare_data(*paths, np.random.default_rng(0))
    if as_json:
        click.echo(found.to_json())
    else:
        print_data_changes(found)


@triage.command()
@click.argument("runs", nargs=-1, type=RUN, metavar="[RUN]...")
@click.option("--against", type=RUN, metavar="RUN", help="A run that began faster: says which part grew.")
@_JSON
def startup(runs: tuple[str, ...], against: str | None, as_json: bool) -> None:
    """Say where the time goes before the first step of RUNs, of all on record unless some are named.

    It counts from the command that asked, or from the death of the attempt before, until the first step has
    ended; each second is in one part, or is said to be in none."""
    from assay.cli.screens.triage import print_startup
    from assay.launch.run import existing_run
    from assay.triage.startup import startup_of

    home = given_home()
    chosen = [existing_run(home, run_id) for run_id in runs] or [run for run in home.runs() if not run.is_drill]
    if not chosen:
        raise ConfigError(f"there are no runs in {home.folder}. Is $ASSAY_HOME right?")
    found = startup_of(chosen, None if against is None else existing_run(home, against))
    if as_json:
        click.echo(found.to_json())
    else:
        print_startup(found)


@triage.command()
@click.argument("sources", nargs=-1, type=SOURCE_PATH, metavar="JUNIT...", required=True)
@click.option(
    "--shards", type=click.IntRange(1, 10_000), metavar="N", help="Spread the tests over so many machines."
)
@click.option("--commit", metavar="REV", help="All files are results of this commit.")
@click.option(
    "--path",
    metavar="PATTERN",
    help="What the ends of paths mean: '{commit}/{config}/{run}.xml', * is anything.",
)
@_JSON
def ci(
    sources: tuple[Path, ...], shards: int | None, commit: str | None, path: str | None, as_json: bool
) -> None:
    """Say where the time of CI goes, how to cut it, which tests flake, and which order fails earliest.

    A JUNIT is JUnit XML, a folder of such files, GitHub's jobs, or the durations of pytest-split. A test is
    flaky if it passed and failed on one commit in one configuration; a file's properties or its path say of
    which commit it is."""
    from assay.cli.screens.triage import print_ci
    from assay.triage.ci.recorded import read_recorded
    from assay.triage.ci.report import report_of

    found = report_of(read_recorded(sources, commit=commit, path=path), shards)
    if as_json:
        click.echo(found.to_json())
    else:
        print_ci(found)


def _rows_path(given: str) -> Path:
    """The file or folder; of a run, the folder of its dataset."""
    if Path(given).exists():
        return Path(given)
    if "/" in given or Path(given).suffix:
        raise ConfigError(f"{given}: no such file or folder.")
    home = given_home()
    run_id = home.meant_run(given)
    if not home.has_run(run_id):
        raise ConfigError(f"{given}: no such file or folder, and no run in {home.folder}.")
    return Path(str(home.run(run_id).recipe["data"]["dataset"]))


@triage.command()
@_SOURCES
@click.option("--value", metavar="COL", help="What was measured; of the ledger's runs, seconds per step.")
@click.option("--at", metavar="COL", help="When: epoch seconds, or ISO 8601; else rows are in order.")
@click.option("--factors", metavar="A,B,...", help="Columns that may be at fault; else all others.")
@click.option("--phases", metavar="A,B,...", help="Columns that the value is made of.")
@click.option("--least", default=0.005, show_default=True, help="The least change, as a share of the level.")
@_JSON
def slow(
    sources: tuple[Path, ...],
    value: str | None,
    at: str | None,
    factors: str | None,
    phases: str | None,
    least: float,
    as_json: bool,
) -> None:
    """Find lasting changes in step time or another value, the phase that grew, and the factor at fault.

    A factor is to blame where it changed alone, or where runs cross: this code elsewhere, other code here.
    A SOURCE is any table that 'triage failures' reads; without one, it is the runs of the ledger."""
    from assay.cli.screens.triage import print_slow_changes
    from assay.triage.slow.explain import explain_changes
    from assay.triage.slow.series import SeriesNames

    names = SeriesNames(value, at, _names_in(factors), _names_in(phases))
    found = explain_changes(_series(sources, names), least=least)
    if as_json:
        click.echo(found.to_json())
    else:
        print_slow_changes(found)


@triage.command()
@click.argument("sources", nargs=-1, type=SOURCE_PATH, metavar="SOURCE...", required=True)
@click.option("--value", metavar="COL", required=True, help="A duration of a rank's own work.")
@click.option("--place", metavar="A,B,...", required=True, help="Where it was: stage, worker.")
@click.option("--work", metavar="C,D,...", required=True, help="What it was: step, micro-batch.")
@click.option("--kind", metavar="COL", help="Of which kind: forward, backward; each is looked at by itself.")
@_JSON
def skew(sources: tuple[Path, ...], value: str, place: str, work: str, kind: str | None, as_json: bool) -> None:
    """Say whether the durations of one run differ by place (a slow worker) or by work (uneven batches).

    A collective makes all ranks wait for the slowest: give durations of compute only."""
    from assay.cli.screens.triage import print_skew
    from assay.triage.attempts.sources import read_tables
    from assay.triage.skew import durations_of, split_skew

    where, table, digests = read_tables(list(sources))
    durations = durations_of(
        where, table, digests, value=value, place=_names_in(place) or (), work=_names_in(work) or (), kind=kind
    )
    found = split_skew(durations)
    if as_json:
        click.echo(found.to_json())
    else:
        print_skew(found)


@triage.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_JSON
def hang(folder: Path, as_json: bool) -> None:
    """Name the ranks that never entered a collective that all others wait in, or entered another.

    FOLDER holds one dump of torch's flight recorder for each rank, JSON or pickle. Nothing of a dump is
    executed."""
    from assay.cli.screens.triage import print_hung_ranks
    from assay.triage.flight_recorder import read_dumps
    from assay.triage.hung_collective import find_hung_ranks

    found = find_hung_ranks(*read_dumps(folder))
    if as_json:
        click.echo(found.to_json())
    else:
        print_hung_ranks(found)


def _names_in(text: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",")) if text else None


def _series(sources: tuple[Path, ...], names: "SeriesNames") -> "MeasuredSeries":
    if sources:
        from assay.triage.slow.series import read_series

        return read_series(sources, names)
    home = given_home()
    ledger = found_ledger(home)
    if ledger is None:
        raise ConfigError(f"there are no runs in {home.folder}. Is $ASSAY_HOME right? Or give a SOURCE.")
    from assay.triage.slow.ledger import ledger_series

    with ledger:
        return ledger_series(ledger, names)


def _given_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--where {text}: expected COL=VALUE, e.g. host=n12.")
    return name, value


def _table(sources: tuple[Path, ...], names: "ColumnNames") -> "AttemptTable":
    if sources:
        from assay.triage.attempts.sources import read_attempts

        return read_attempts(list(sources), names)
    home = given_home()
    ledger = found_ledger(home)
    if ledger is None:
        raise ConfigError(f"there are no runs in {home.folder}. Is $ASSAY_HOME right? Or give a SOURCE.")
    from assay.triage.attempts.ledger import ledger_attempts

    with ledger:
        return ledger_attempts(ledger, names)
