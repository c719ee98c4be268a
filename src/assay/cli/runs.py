"""`assay runs`: the runs in the ledger."""

import json

import click


@click.command()
@click.option(
    "--json", "as_json", is_flag=True, help="Print a list, each with the keys of 'assay show --json'."
)
def runs(as_json: bool) -> None:
    """List the runs, newest first."""
    from assay.cli.show import run_tree
    from assay.store.ledger.ledger import open_ledger

    with open_ledger() as ledger:
        trees = [run_tree(ledger, run.run_id) for run in reversed(ledger.runs())]
    if as_json:
        click.echo(json.dumps(trees))
        return
    if not trees:
        click.echo("no runs yet. Start with 'assay demo', or 'assay train RECIPE'.")
        return
    width = max(len(tree["run_id"]) for tree in trees)
    click.secho(
        f"{'run':<{width}}  {'status':<10} {'step':>7}  {'ranks':<9} {'AUC':>6}  {'audit':<10} device-hours",
        bold=True,
    )
    for tree in trees:
        auc = (tree["evaluation"] or {}).get("auc")
        ranks = "→".join(str(size) for size in tree["world_sizes"][-4:])
        click.echo(
            f"{tree['run_id']:<{width}}  {tree['status']:<10} {tree['step']:>7,}  {ranks:<9} "
            f"{auc['value'] if auc else float('nan'):>6.4f}  {(tree['audit'] or {}).get('verdict', '-'):<10} "
            f"{tree['held_s'] / 3600:.3f}"
        )
