"""`assay runs`: one line per run."""

from contextlib import nullcontext

import click

from assay.cli.given import found_ledger, given_home, opened_ledger


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, the newest run first (docs/json.md).")
@click.option("--rebuild", is_flag=True, help="First write every run's folder into the ledger again.")
@click.option("--drills", is_flag=True, help="Also those that 'assay drill' made, to hurt them.")
def runs(as_json: bool, rebuild: bool, drills: bool) -> None:
    """List the runs, the newest first.

    The ledger is an index over the runs' folders: if its database is lost, --rebuild makes it anew.
    """
    from assay.cli.screens.lists import print_runs
    from assay.reporting.views.run_list import run_lines
    from assay.reporting.views.view import json_list

    home = given_home()
    if rebuild:
        from assay.launch.rebuild import rebuild_all

        with opened_ledger(home) as opened:
            for remark in rebuild_all(home, opened).remarks:
                click.echo(remark, err=True)
    with found_ledger(home) or nullcontext() as ledger:
        lines = run_lines(ledger, drills=drills) if ledger else []
    if as_json:
        click.echo(json_list(lines))
    elif not lines:
        click.echo(f"No runs in {home.folder} yet. 'assay train RECIPE' makes one, 'assay demo' shows all.")
    else:
        print_runs(lines)
