"""`assay runs list`, `tag`, `note`, `delete`: the runs on record, and what people say of them."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.parameters import RUN, current_home, json_option, readable_ledger, writable_ledger

_STATUSES = ("running", "gone", "unknown", "succeeded", "failed", "preempted", "stopped")
"""Those of a record, and the word that is shown for one of them."""
_SORTINGS = ("age", "cost", "name", "seen", "status", "step", "value")


@click.command("list")
@click.option(
    "--status", type=click.Choice(_STATUSES), multiple=True, help="Show only runs of this status. May be repeated."
)
@click.option("--tag", "tags", multiple=True, help="Show only runs with this tag. May be repeated; all must match.")
@click.option("--search", "text", default="", show_default=False, help="Show only runs with this in id, name or note.")
@click.option(
    "--where", multiple=True, metavar="KEY=VALUE", help="Show only runs whose recipe has this value. May be repeated."
)
@click.option("--sort", type=click.Choice(_SORTINGS), default="age", help="Column to sort by.")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of runs to show.")
@json_option
@click.option("--rebuild", is_flag=True, help="Rebuild the ledger from the runs' folders first.")
@click.option("--drills", is_flag=True, help="Include the runs of 'assay train drill'.")
def list_(as_json: bool, rebuild: bool, **filters: Any) -> None:
    """List the runs, the newest first.

    The ledger is an index of the runs' folders: if its database is lost, --rebuild restores it.
    """
    from assay.base.config import parse_override
    from assay.reporting.documents.runs.run_list import runs_table
    from assay.reporting.terminal.table import print_table
    from assay.reporting.views.runs.run_list import Selection, run_lines
    from assay.reporting.views.view import json_list
    from assay.store.known_runs import RUN_FILE

    selection = Selection(**{**filters, "where": dict(map(parse_override, filters["where"]))})
    home = current_home()
    if rebuild:
        from assay.workflows.rebuild import rebuild_all

        with writable_ledger(home) as opened:
            for problem in rebuild_all(home, opened).problems:
                click.echo(problem, err=True)
    with _gc_disabled(), readable_ledger(home) or nullcontext() as ledger:
        lines = run_lines(ledger, selection) if ledger else []
    if as_json:
        click.echo(json_list(lines))
    elif lines:
        now_s = SystemClock().now_s()
        print_table(runs_table(lines, now_s=now_s))
        for line in lines:
            if line.is_stale:
                click.secho(line.stale_text(now_s), err=True, fg="yellow")
    elif selection != Selection():
        click.echo(f"No run in {home.folder} matches.")
    elif any(home.folder.glob(f"*/{RUN_FILE}")):
        click.echo(f"The ledger has none of the runs in {home.folder}. 'assay runs --rebuild' adds them.")
    else:
        click.echo(f"No runs in {home.folder} yet. Start one with 'assay train RECIPE', or try 'assay demo'.")


@click.command()
@click.argument("run_ids", metavar="[RUN]...", nargs=-1, type=RUN)
@click.option("--group", "keys", multiple=True, metavar="KEY", help="Add the group with this key. May be repeated.")
@click.option("--metric", default="loss", help="Metric whose mean curves are shown.")
@click.option("--baseline", type=RUN, help="Run of the group from which differences are shown.")
@json_option
def groups(run_ids: tuple[str, ...], keys: tuple[str, ...], metric: str, baseline: str | None, as_json: bool) -> None:
    """Compare the recipes of RUNs: curves, scores and cost over all runs of each recipe; without RUN, of all recipes.

    The runs of a group have the same recipe but for name and seed. Means are over all of them, whichever RUN is named.
    """
    from assay.reporting.documents.runs.run_groups import compare_document
    from assay.reporting.terminal.document import print_document
    from assay.reporting.views.runs.run_groups import group_curves, run_groups
    from assay.reporting.views.view import json_list

    with writable_ledger(current_home()) as ledger:
        found = run_groups(ledger, runs=run_ids, keys=keys)
        curves = [] if as_json or not found else group_curves(ledger, found, metric, highlighted=run_ids)
    if as_json:
        click.echo(json_list(found))
    elif not found:
        click.echo("No runs yet. Start one with 'assay train RECIPE'.")
    else:
        pinned = next((group.key for group in found if baseline in group.runs), "")
        print_document(compare_document(found, curves, metric=metric, baseline=pinned, selected=run_ids))


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Disable garbage collection: all objects read here are listed, and collecting costs 1/20 of the time."""
    was_collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collected:
            gc.enable()


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.argument("tags", nargs=-1, required=True)
def tag(run_id: str, tags: tuple[str, ...]) -> None:
    """Add TAGS to RUN; a tag followed by '-' is removed: 'assay runs tag RUN good bad-'."""
    from assay.store.run_notes import tag as put_tags

    removed = [text[:-1] for text in tags if text.endswith("-")]
    _record_change(
        run_id, lambda run: put_tags(run, add=[text for text in tags if not text.endswith("-")], remove=removed)
    )


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.argument("words", nargs=-1, required=True)
def note(run_id: str, words: tuple[str, ...]) -> None:
    """Add a note to RUN with your name and the time: 'assay runs note RUN the labels were wrong'."""
    from assay.store.run_notes import note as add_note

    _record_change(run_id, lambda run: add_note(run, " ".join(words)))


def _record_change(run_id: str, problem: Any) -> None:
    """Write the change to the run's folder, then to the ledger, which is an index of it."""
    home = current_home()
    from assay.store.ledger.writer import marking

    with writable_ledger(home) as ledger:
        run = home.run(run_id if home.has_run(run_id) else ledger.run(run_id).run_id)
        run_notes = problem(run)
        with marking(home, run.run_id):
            ledger.record_run_notes(run_notes)
    tags = f"tags: {', '.join(run_notes.tags)}" if run_notes.tags else "no tags"
    click.echo(f"run {run.run_id}: {tags}; {len(run_notes.notes)} {'note' if len(run_notes.notes) == 1 else 'notes'}")


@click.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(run_ids: tuple[str, ...], yes: bool) -> None:
    """Delete RUNs and their commits, in all stores, after confirmation. Running runs are rejected.

    RUNs are whole ids. Datasets, suites and forks stay; forks have copies of what they need.
    """
    home = current_home()
    for run_id in run_ids:
        home.run_file(run_id)
    from assay.base.shown_url import without_secrets
    from assay.base.units import bytes_text, number_of
    from assay.workflows.delete import delete_run, plan_deletion

    with writable_ledger(home) as ledger:
        planned = [plan_deletion(home, ledger, run_id) for run_id in dict.fromkeys(run_ids)]
        for deletion in planned:
            store_text = (
                ""
                if deletion.run.store_url == deletion.run.run_dir
                else f" and {without_secrets(deletion.run.store_url)}"
            )
            click.echo(
                f"{deletion.run.run_id}: {number_of(deletion.num_files, 'file')}, {bytes_text(deletion.num_bytes)}, in "
                f"{deletion.run.run_dir}{store_text}"
            )
            for loss in deletion.losses:
                click.secho(f"  {loss}", fg="yellow")
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigError("there is no terminal to confirm this. Add --yes to delete all of it.")
            click.confirm(f"Delete {'it' if len(planned) == 1 else f'these {len(planned)} runs'} for good?", abort=True)
        for deletion in planned:
            delete_run(home, ledger, deletion.run)
            click.echo(f"deleted {deletion.run.run_id}")
