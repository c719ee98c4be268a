"""`assay triage ci`: where CI loses time, which tests are flaky, and which tests a change affects."""

from pathlib import Path

import click

from assay.base.errors import ConfigError
from assay.cli.parameters import FOLDER, SOURCE_PATH, json_option
from assay.cli.triage.parameters import print_result


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
@click.option("--changed", metavar="REV", help="List the tests that import files changed since this commit.")
@click.option(
    "--repo", type=FOLDER, metavar="FOLDER", help="With --changed: repository to inspect; by default the current one."
)
@json_option
def ci(
    sources: tuple[Path, ...],
    shards: int | None,
    commit: str | None,
    path: str | None,
    changed: str | None,
    repo: Path | None,
    as_json: bool,
) -> None:
    """Show where CI spends time and which tests are flaky; or which tests a change affects (--changed).

    A JUNIT is JUnit XML, a folder of such files, GitHub's jobs, or durations of pytest-split. A test is flaky
    if it passed and failed on one commit in one configuration; the commit is taken from a file's properties or
    path. No code of the repository is imported or executed.
    """
    if (changed is None) == (not sources):
        raise ConfigError("give either JUNIT files, or --changed REV.")
    if changed is not None and (shards or commit or path):
        raise ConfigError("--shards, --commit and --path need results. Give JUNIT files.")
    if repo is not None and changed is None:
        raise ConfigError("--repo needs --changed REV.")
    if changed is not None:
        from assay.triage.ci.changed import changed_since

        print_result(changed_since(changed, repo or Path()), as_json=as_json)
        return
    from assay.triage.ci.recorded import read_recorded
    from assay.triage.ci.report import report_of

    found = report_of(*read_recorded(sources, commit=commit, path=path), shards)
    print_result(found, as_json=as_json)
