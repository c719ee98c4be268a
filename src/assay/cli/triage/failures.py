"""`assay triage failures`, `fixed`: what failed attempts have in common, and whether a fix worked."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.errors import ConfigError
from assay.cli.given import asked_ledger, given_home
from assay.cli.triage.given import JSON, SOURCES, column_options, names_in

if TYPE_CHECKING:
    from assay.triage.attempts.build import ColumnNames
    from assay.triage.attempts.table import AttemptTable


@click.command()
@SOURCES
@column_options
@click.option("--factors", metavar="A,B,...", help="Columns that may be at fault; else all others.")
@click.option("--window", metavar="FROM..TO", help="Only attempts of this time, half open.")
@click.option("--baseline", metavar="FROM..TO", help="The time before, which the window is held against.")
@click.option("--exposure", metavar="COL", help="Rates per this instead of per attempt, e.g. device-hours.")
@JSON
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

    names = ColumnNames(failed, attempts, at, unit, exposure, names_in(factors))
    times = [
        given_window(text, f"--{name}") if text else None
        for name, text in (("window", window), ("baseline", baseline))
    ]
    import numpy as np

    from assay.reporting.terminal.triage import print_diagnosis
    from assay.triage.failures.diagnose import diagnose

    table = _table(sources, names)
    found = diagnose(table, window=times[0], baseline=times[1], rng=np.random.default_rng(0))
    if as_json:
        click.echo(found.to_json())
    else:
        print_diagnosis(found)


@click.command()
@SOURCES
@column_options
@click.option("--since", metavar="T", required=True, help="When it was mended: epoch seconds, or ISO 8601.")
@click.option(
    "--where", multiple=True, metavar="COL=VALUE", help="Only these attempts, e.g. host=n12; may be repeated."
)
@JSON
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
    from assay.reporting.terminal.triage import print_fix_check
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


def _given_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--where {text}: expected COL=VALUE, e.g. host=n12.")
    return name, value


def _table(sources: tuple[Path, ...], names: "ColumnNames") -> "AttemptTable":
    if sources:
        from assay.triage.attempts.sources import read_attempts

        return read_attempts(list(sources), names)
    from assay.triage.attempts.ledger import ledger_attempts

    with asked_ledger(given_home()) as ledger:
        return ledger_attempts(ledger, names)
