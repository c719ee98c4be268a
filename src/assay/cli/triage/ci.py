"""`assay triage ci`: where the time of CI goes, and what flakes."""

from pathlib import Path

import click

from assay.cli.given import SOURCE_PATH
from assay.cli.triage.given import JSON


@click.command()
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
@JSON
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
