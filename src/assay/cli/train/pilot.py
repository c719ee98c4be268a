"""`assay train pilot`: which outer optimizer to train with over several clusters."""

from pathlib import Path

import click

from assay.cli.parameters import FILE


@click.command()
@click.argument("recipe", type=FILE)
@click.argument("overrides", nargs=-1)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Inner steps of each run.  [default: until a momentum of 0.9 has settled: 20 outer steps]",
)
def pilot(recipe: Path, overrides: tuple[str, ...], steps: int | None) -> None:
    """Train RECIPE with several outer optimizers for a few steps, and propose one.

    Every optimizer trains with three seeds, with all its clusters on this machine, and so do synchronous training and
    one cluster alone, for comparison. Nothing is kept. Averaging is proposed unless another optimizer has a lower
    held-out loss with every seed.
    """
    from assay.base.config import dotted_leaves
    from assay.workflows.outer.pilot import run_pilot

    proposal = run_pilot(recipe, overrides, steps=steps, progress=lambda line: click.echo(line, err=True))
    settings = proposal.optimizer.model_dump(mode="json")
    for key, value in dotted_leaves(settings, "outer.optimizer."):
        click.echo(f"{key}={value}")
    click.echo(proposal.reason, err=True)
