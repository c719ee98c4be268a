"""`assay runs show`, `diff`, `keys`: what runs did, and what differs between two."""

from pathlib import Path

import click

from assay.base.clock import SystemClock
from assay.cli.parameters import RUN, RUN_OR_PIPELINE, current_home, json_option, ledger_with_runs


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN_OR_PIPELINE)
@json_option
def show(run_id: str, as_json: bool) -> None:
    """Show what RUN (its id, or the beginning of it) did, cost and measured; for a pipeline, its stages; for a
    session of the Tinker API, also its models and what they wait for."""
    home = current_home()
    if home.has_pipeline(run_id):
        from assay.cli.train.pipeline import print_pipeline

        print_pipeline(run_id, as_json=as_json)
        return
    from assay.reporting.views.runs.run_page import run_page

    with ledger_with_runs(home, run_id) as ledger:
        page = run_page(ledger, run_id, home.settings(), is_brief=True, has_all_metrics=as_json)
        view = page.view
        if as_json:
            click.echo(view.to_json())
            return
        from assay.reporting.documents.runs.run import run_document  # imported here: --json does not need it
        from assay.reporting.terminal.document import print_document
        from assay.reporting.views.runs.run_list import is_stale, stale_text

        now_s = SystemClock().now_s()
        print_document(run_document(page, now_s=now_s))
        written = ledger.last_writes().get(view.run_id)
        if view.imported is None and written is not None and is_stale(Path(view.run_dir), view.status, written[0]):
            click.secho(stale_text(view.run_id, written, now_s), err=True, fg="yellow")


@click.command()
@click.option(
    "--settings", is_flag=True, help="Print the keys of settings.yaml instead, e.g. prices and event command."
)
def keys(settings: bool) -> None:
    """Print every key of the JSON that commands print, with its meaning."""
    if settings:
        from assay.store.settings import settings_reference

        click.echo(settings_reference(), nl=False)
        return
    from assay.reporting.views.json_reference import json_reference

    click.echo(json_reference(), nl=False)


@click.command()
@click.argument("before", metavar="RUN", type=RUN)
@click.argument("after", metavar="RUN", type=RUN)
@json_option
def diff(before: str, after: str, as_json: bool) -> None:
    """Show what differs between two RUNs: recipe, data, code, environment, curve, result and cost."""
    from assay.reporting.documents.runs.run_diff import run_diff_document
    from assay.reporting.terminal.document import print_document
    from assay.reporting.views.runs.run_diff import run_diff

    home = current_home()
    with ledger_with_runs(home, before, after) as ledger:
        view = run_diff(ledger, before, after, home.settings())
    if as_json:
        click.echo(view.to_json())
    else:
        print_document(run_diff_document(view))
