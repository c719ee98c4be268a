"""`assay runs diff RUN RUN`: show what differs between two runs."""

import click

from assay.cli.parameters import RUN, current_home, json_option, ledger_with_runs


@click.command()
@click.argument("before", metavar="RUN", type=RUN)
@click.argument("after", metavar="RUN", type=RUN)
@json_option
def diff(before: str, after: str, as_json: bool) -> None:
    """Show what differs between two RUNs: recipe, data, code, environment, curve, result and cost."""
    from assay.reporting.terminal.run_diff import print_diff
    from assay.reporting.views.run_diff import run_diff

    home = current_home()
    with ledger_with_runs(home, before, after) as ledger:
        view = run_diff(ledger, before, after, home.settings())
    if as_json:
        click.echo(view.to_json())
    else:
        print_diff(view)
