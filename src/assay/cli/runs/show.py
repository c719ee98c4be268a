"""`assay runs show RUN`: show what a run did, cost and measured, or the stages of a pipeline."""

from pathlib import Path

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.parameters import RUN_OR_PIPELINE, current_home, ledger_with_runs


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN_OR_PIPELINE, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/json.md).")
@click.option("--keys", is_flag=True, help="Print every key of the --json output of all commands.")
def show(run_id: str | None, as_json: bool, keys: bool) -> None:
    """Show what RUN (its id, or the beginning of it) did, cost and measured; for a pipeline, its stages."""
    if keys:
        from assay.reporting.views.json_reference import json_reference

        click.echo(json_reference(), nl=False)
        return
    if run_id is None:
        raise ConfigError("RUN is missing. 'assay runs' lists the runs.")
    home = current_home()
    if home.has_pipeline(run_id):
        from assay.cli.train.pipeline import print_pipeline

        print_pipeline(run_id, as_json=as_json)
        return
    from assay.reporting.views.run import run_view

    with ledger_with_runs(home, run_id) as ledger:
        view = run_view(ledger, run_id, home.settings())
        if as_json:
            click.echo(view.to_json())
            return
        from assay.reporting.terminal.run import print_run  # imported here: --json does not need it
        from assay.reporting.views.run_list import is_stale, stale_text
        from assay.reporting.views.series import run_series

        print_run(view, run_series(ledger, view.run_id))
        written = ledger.last_writes().get(view.run_id)
        if written is not None and is_stale(Path(view.run_dir), view.status, written[0]):
            click.secho(stale_text(view.run_id, written, SystemClock().now_s()), err=True, fg="yellow")
