"""`assay diff RUN RUN`: what differs between two runs, and what came of it."""

import click

from assay.cli.given import RUN, asked_ledger, given_home


@click.command()
@click.argument("before", metavar="RUN", type=RUN)
@click.argument("after", metavar="RUN", type=RUN)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/json.md).")
def diff(before: str, after: str, as_json: bool) -> None:
    """Show what differs from one RUN to the other: recipe, data, code, environment; curve, result and cost."""
    from assay.reporting.terminal.run_diff import print_diff
    from assay.reporting.views.run_diff import run_diff

    home = given_home()
    with asked_ledger(home, before, after) as ledger:
        found = run_diff(ledger, before, after, home.settings())
    if as_json:
        click.echo(found.to_json())
    else:
        print_diff(found)
