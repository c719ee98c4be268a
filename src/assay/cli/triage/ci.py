"""`assay triage ci`: where CI loses time, which tests are flaky, and which tests a change affects."""

from pathlib import Path

import click

from assay.base.errors import ConfigError
from assay.cli.parameters import FOLDER, SOURCE_PATH
from assay.cli.triage.parameters import JSON


@click.command()
@click.argument("sources", nargs=-1, type=SOURCE_PATH, metavar="[JUNIT]...")
@click.option(
    "--shards", type=click.IntRange(1, 10_000), metavar="N", help="Number of machines to distribute the tests over."
)
@click.option("--commit", metavar="REV", help="Commit that all files are results of.")
@click.option(
    "--path",
    metavar="PATTERN",
    help="Pattern for the ends of paths, e.g. '{commit}/{config}/{run}.xml'; * matches anything.",
)
@click.option("--changed", metavar="REV", help="List the tests affected by files changed since this commit.")
@click.option(
    "--repo", type=FOLDER, metavar="FOLDER", help="With --changed: repository to inspect; by default the current one."
)
@JSON
def ci(
    sources: tuple[Path, ...],
    shards: int | None,
    commit: str | None,
    path: str | None,
    changed: str | None,
    repo: Path | None,
    as_json: bool,
) -> None:
    """Show where CI spends time and how to cut it, which tests are flaky, which test order fails earliest, and
    which tests a change affects (--changed); with results, also whether these would have caught recorded
    failures.

    A JUNIT is JUnit XML, a folder of such files, GitHub's jobs, or durations of pytest-split. A test is flaky
    if it passed and failed on one commit in one configuration; the commit is taken from a file's properties or
    path. No code of the repository is imported or executed.
    """
    from assay.reporting.terminal.triage import print_ci
    from assay.triage.ci.changed import changed_since
    from assay.triage.ci.recorded import read_recorded
    from assay.triage.ci.report import report_of, report_without_results

    if not sources and changed is None:
        raise ConfigError("no results given. Give JUNIT files, or --changed REV.")
    if not sources and (shards or commit or path):
        raise ConfigError("--shards, --commit and --path need results. Give JUNIT files.")
    if repo is not None and changed is None:
        raise ConfigError("--repo needs --changed REV.")
    recorded = read_recorded(sources, commit=commit, path=path) if sources else None
    found = report_of(recorded, shards) if recorded else report_without_results()
    if changed is not None:
        files = recorded.files if recorded else ()
        since = changed_since(changed, repo or Path(), files)
        found = found.model_copy(update={"changed": since})
    if as_json:
        click.echo(found.to_json())
    else:
        print_ci(found)
