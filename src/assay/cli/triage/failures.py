"""`assay triage failures`, `fixed`: what failed attempts have in common, and whether a fix worked."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.errors import ConfigError
from assay.cli.parameters import current_home, json_option, ledger_with_runs
from assay.cli.triage.parameters import SOURCES, column_options, names_in, print_result

if TYPE_CHECKING:
    from assay.triage.attempts.table import AttemptTable, ColumnNames


@click.command()
@SOURCES
@column_options
@click.option("--factors", metavar="A,B,...", help="Columns that may be the cause; by default all others.")
@click.option("--window", metavar="FROM..TO", help="Use only attempts in this time range, end exclusive.")
@click.option("--baseline", metavar="FROM..TO", help="Earlier time range to compare the window with.")
@click.option(
    "--exposure", metavar="COL", help="Column to compute rates per, e.g. device-hours; by default per attempt."
)
@json_option
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
    """Find what failed attempts have in common: host, image, recipe key, dataset, commit, or up to three of
    them combined.

    A SOURCE is CSV, Parquet, JSONL, output of sacct (--parsable2, --json) or Slurm's job completion log, pods
    of kubectl, JUnit XML or GitHub's jobs, recognized by content; without one, the attempts of all runs. A cell
    n01|n02 holds two values.
    """
    from assay.triage.attempts.moments import window as parse_window
    from assay.triage.attempts.table import ColumnNames

    names = ColumnNames(failed, attempts, at, unit, exposure, names_in(factors))
    times = [
        parse_window(text, f"--{name}") if text else None for name, text in (("window", window), ("baseline", baseline))
    ]
    import numpy as np

    from assay.triage.failures.diagnose import diagnose

    table = _table(sources, names)
    found = diagnose(table, window=times[0], baseline=times[1], rng=np.random.default_rng(0))
    print_result(found, as_json=as_json)


@click.command()
@SOURCES
@column_options
@click.option("--since", metavar="T", required=True, help="Time of the fix: epoch seconds, or ISO 8601.")
@click.option(
    "--where", multiple=True, metavar="COL=VALUE", help="Use only these attempts, e.g. host=n12. May be repeated."
)
@json_option
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
    """Test whether attempts fail less often since a time; may be repeated after every attempt.

    The fix is confirmed once the evidence against the lowest plausible old rate reaches 20: at most 5% of such
    confirmations are wrong, however often the command runs.
    """
    from assay.triage.attempts.moments import moment
    from assay.triage.attempts.table import ColumnNames

    since_s = moment(since, "--since")
    filters = [_parse_filter(text) for text in where]
    from assay.triage.attempts.table import with_values
    from assay.triage.failures.fixed import check_fix

    names = ColumnNames(failed, attempts, at, unit, None, tuple(dict.fromkeys(name for name, _ in filters)) or None)
    found = check_fix(with_values(_table(sources, names), filters), since_s)
    print_result(found, as_json=as_json)


def _parse_filter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--where {text}: expected COL=VALUE, e.g. host=n12.")
    return name, value


def _table(sources: tuple[Path, ...], names: "ColumnNames") -> "AttemptTable":
    if sources:
        from assay.triage.attempts.sources import read_sources
        from assay.triage.attempts.table import table_of

        return table_of(read_sources(sources), names)
    from assay.triage.attempts.ledger import ledger_attempts

    with ledger_with_runs(current_home()) as ledger:
        return ledger_attempts(ledger, names)
