"""`assay triage ci`: where the time of CI goes, what flakes, and which tests a change reaches."""

from pathlib import Path

import click

from assay.base.errors import ConfigError
from assay.cli.given import FOLDER, SOURCE_PATH
from assay.cli.triage.given import JSON


@click.command()
@click.argument("sources", nargs=-1, type=SOURCE_PATH, metavar="[JUNIT]...")
@click.option(
    "--shards", type=click.IntRange(1, 10_000), metavar="N", help="Spread the tests over so many machines."
)
@click.option("--commit", metavar="REV", help="All files are results of this commit.")
@click.option(
    "--path",
    metavar="PATTERN",
    help="What the ends of paths mean: '{commit}/{config}/{run}.xml', * is anything.",
)
@click.option("--changed", metavar="REV", help="Name the tests that files changed since this commit reach.")
@click.option(
    "--repo", type=FOLDER, metavar="FOLDER", help="With --changed: the repository. Default: this one."
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
    """Say where the time of CI goes, how to cut it, which tests flake, and which order fails earliest; and
    which tests a change reaches (--changed), with results whether these would have found recorded failures.

    A JUNIT is JUnit XML, a folder of such files, GitHub's jobs, or the durations of pytest-split. A test is
    flaky if it passed and failed on one commit in one configuration; a file's properties or its path say of
    which commit it is. Nothing of a repository is imported or executed."""
    from assay.reporting.terminal.triage import print_ci
    from assay.triage.ci.changed import changed_since
    from assay.triage.ci.recorded import read_recorded
    from assay.triage.ci.report import report_of, report_without_results

    if not sources and changed is None:
        raise ConfigError("no results to look at. Give JUNIT files, or --changed REV.")
    if not sources and (shards or commit or path):
        raise ConfigError("--shards, --commit and --path are about results. Give JUNIT files.")
    if repo is not None and changed is None:
        raise ConfigError("--repo says where to look for changes. Add --changed REV.")
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
