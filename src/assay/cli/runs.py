"""`assay runs`: one line per run; tags and notes of people; and the deletion of runs."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from assay.base.errors import ConfigError
from assay.cli.given import RUN, CommandGroup, found_ledger, given_home, opened_ledger

_STATUSES = ("running", "gone", "unknown", "succeeded", "failed", "preempted")
_SORTINGS = ("age", "cost", "name", "seen", "status", "step", "value")


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--status", type=click.Choice(_STATUSES), multiple=True, help="Only of this status. May be repeated."
)
@click.option("--tag", "tags", multiple=True, help="Only with this tag; with all of several.")
@click.option("--text", default="", help="Only with this in the id, the recipe's name or a note.")
@click.option("--where", multiple=True, metavar="KEY=VALUE", help="Only with this value of a recipe's key.")
@click.option("--sort", type=click.Choice(_SORTINGS), default="age", show_default=True, help="By which column.")
@click.option("--limit", type=click.IntRange(min=1), help="The first so many.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, the newest run first (docs/json.md).")
@click.option("--rebuild", is_flag=True, help="First write every run's folder into the ledger again.")
@click.option("--drills", is_flag=True, help="Also those that 'assay drill' made, to hurt them.")
def runs(as_json: bool, rebuild: bool, **asked: Any) -> None:
    """List the runs, the newest first; tag, note and delete them.

    The ledger is an index over the runs' folders: if its database is lost, --rebuild makes it anew.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    from assay.base.config import parse_override
    from assay.reporting.terminal.run_list import print_runs
    from assay.reporting.views.run_list import Selection, run_lines
    from assay.reporting.views.view import json_list
    from assay.store.known_runs import RUN_FILE

    selection = Selection(**{**asked, "where": dict(map(parse_override, asked["where"]))})
    home = given_home()
    if rebuild:
        from assay.workflows.rebuild import rebuild_all

        with opened_ledger(home) as opened:
            for remark in rebuild_all(home, opened).remarks:
                click.echo(remark, err=True)
    with _all_kept(), found_ledger(home) or nullcontext() as ledger:
        lines = run_lines(ledger, selection) if ledger else []
    if as_json:
        click.echo(json_list(lines))
    elif lines:
        print_runs(lines)
    elif selection != Selection():
        click.echo(f"No run in {home.folder} is like that.")
    elif any(home.folder.glob(f"*/{RUN_FILE}")):
        click.echo(f"The ledger has none of the runs in {home.folder}. 'assay runs --rebuild' enters them.")
    else:
        click.echo(f"No runs in {home.folder} yet. 'assay train RECIPE' makes one, 'assay demo' shows all.")


@contextmanager
def _all_kept() -> Iterator[None]:
    """What is read in here is all listed: looking through it for garbage takes a twentieth of the time."""
    was_collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collected:
            gc.enable()


@runs.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.argument("tags", nargs=-1, required=True)
def tag(run_id: str, tags: tuple[str, ...]) -> None:
    """Put TAGS on RUN; a tag with a '-' behind it is taken off: 'assay runs tag RUN good bad-'."""
    from assay.store.remarks import tag as put_tags

    gone = [each[:-1] for each in tags if each.endswith("-")]
    _say(run_id, lambda run: put_tags(run, add=[each for each in tags if not each.endswith("-")], remove=gone))


@runs.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.argument("words", nargs=-1, required=True)
def note(run_id: str, words: tuple[str, ...]) -> None:
    """Add a note to RUN, with your name and the time: 'assay runs note RUN the labels were wrong'."""
    from assay.store.remarks import note as add_note

    _say(run_id, lambda run: add_note(run, " ".join(words)))


def _say(run_id: str, remark: Any) -> None:
    """The folder first: the ledger is an index of it."""
    home = given_home()
    from assay.store.ledger.writer import marking

    with opened_ledger(home) as ledger:
        run = home.run(run_id if home.has_run(run_id) else ledger.run(run_id).run_id)
        said = remark(run)
        with marking(home, run.run_id):
            ledger.record_remarks(said)
    tags = f"tags: {', '.join(said.tags)}" if said.tags else "no tags"
    click.echo(f"run {run.run_id}: {tags}; {len(said.notes)} {'note' if len(said.notes) == 1 else 'notes'}")


@runs.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(run_ids: tuple[str, ...], yes: bool) -> None:
    """Delete RUNs with their commits, wherever those lie; asked first. What runs is refused.

    Whole ids only. Datasets and suites stay, and so do forks, which hold a copy of what they began with.
    """
    home = given_home()
    for run_id in run_ids:
        home.run_file(run_id)
    from assay.base.shown_url import without_secrets
    from assay.base.units import bytes_text, number_of
    from assay.workflows.delete import delete_run, planned_deletion

    with opened_ledger(home) as ledger:
        planned = [planned_deletion(home, ledger, run_id) for run_id in dict.fromkeys(run_ids)]
        for each in planned:
            place = (
                "" if each.run.store_url == each.run.run_dir else f" and {without_secrets(each.run.store_url)}"
            )
            click.echo(
                f"{each.run.run_id}: {number_of(each.num_files, 'file')}, {bytes_text(each.num_bytes)}, in "
                f"{each.run.run_dir}{place}"
            )
            for loss in each.losses:
                click.secho(f"  {loss}", fg="yellow")
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigError("nobody is there to be asked. Add --yes, if all of this is to be deleted.")
            click.confirm(
                f"Delete {'it' if len(planned) == 1 else f'these {len(planned)} runs'} for good?", abort=True
            )
        for each in planned:
            delete_run(home, ledger, each.run)
            click.echo(f"deleted {each.run.run_id}")


@runs.command()
def settings() -> None:
    """Print every key of a home's settings.yaml with its default and meaning: prices, and who is told."""
    from assay.store.settings import settings_reference

    click.echo(settings_reference(), nl=False)
