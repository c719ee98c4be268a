"""`assay show RUN`: what a run did, what it cost and what came of it; of a pipeline, its stages."""

from pathlib import Path

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.given import RUN_OR_PIPELINE, asked_ledger, given_home


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN_OR_PIPELINE, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/json.md).")
@click.option("--keys", is_flag=True, help="Print every key of every command's --json with its meaning.")
def show(run_id: str | None, as_json: bool, keys: bool) -> None:
    """Show what RUN (its id, or the beginning of it) did, cost and measured; of a pipeline, its stages."""
    if keys:
        from assay.reporting.views.json_reference import json_reference

        click.echo(json_reference(), nl=False)
        return
    if run_id is None:
        raise ConfigError("show which RUN? 'assay runs' lists them.")
    home = given_home()
    if home.has_pipeline(run_id):
        from assay.cli.train_pipeline import print_pipeline

        print_pipeline(run_id, as_json=as_json)
        return
    from assay.reporting.views.run import run_view

    with asked_ledger(home, run_id) as ledger:
        view = run_view(ledger, run_id, home.settings())
        if as_json:
            click.echo(view.to_json())
            return
        from assay.reporting.terminal.run import print_run  # here, as JSON is written without what draws
        from assay.reporting.views.curves import run_curves
        from assay.reporting.views.run_list import is_stale, stale_text

        print_run(view, run_curves(ledger, view.run_id))
        written = ledger.last_writes().get(view.run_id)
        if written is not None and is_stale(Path(view.run_dir), view.status, written[0]):
            click.secho(stale_text(view.run_id, written, SystemClock().now_s()), err=True, fg="yellow")
