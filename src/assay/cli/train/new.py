"""`assay train new DATASET`: write a first recipe for a dataset."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.parameters import DATASET, OUT_FILE, force_option

if TYPE_CHECKING:
    from assay.workflows.new_recipe import LanguageMethod


@click.command()
@click.argument("dataset", type=DATASET)
@click.option("--out", type=OUT_FILE, help="File to write; by default the recipe is printed.")
@force_option
@click.option("--name", help="Name of the recipe and its runs.  [default: the dataset's name]")
@click.option("--model", help="Folder of a pretrained model, or package:NAME/FOLDER.  [default: a new, small one]")
@click.option(
    "--method",
    type=click.Choice(["sft", "reward", "dpo", "grpo"]),
    help="Training method for language-model rows.  [default: sft for texts and chats, reward for pairs, "
    "grpo for prompts]",
)
@click.option("--epochs", type=click.IntRange(min=1), help="Number of epochs.  [default: chosen by the number of rows]")
def new(
    dataset: Path,
    out: Path | None,
    name: str | None,
    model: str | None,
    method: "LanguageMethod | None",
    epochs: int | None,
) -> None:
    """Write a recipe for DATASET and this machine, with comments; it trains as it is.

    The method follows from the labels or the format of the rows, the token budget from their lengths, lanes and
    model size from this machine, and steps and commits from the number of rows.
    """
    from assay.reporting.documents.render import write_file
    from assay.reporting.terminal.terminal import print_file
    from assay.reporting.views.warnings import warning_text
    from assay.workflows.new_recipe import new_recipe

    found = new_recipe(dataset, name=name, model=model, epochs=epochs, method=method)
    for warning in found.warnings:
        click.echo(f"warning: {warning_text(warning, with_hint=True)}", err=True)
    if out is None:
        print_file(found.text)
        return
    write_file(out, found.text)
    click.echo(f"wrote {out}\n\nnext: assay train {out} --check\n      assay train {out}")


@click.command()
@click.argument("of", metavar="[recipe|pipeline]", type=click.Choice(["recipe", "pipeline"]), default="recipe")
def keys(of: str) -> None:
    """Print every key of a recipe or a pipeline with its default and meaning."""
    if of == "recipe":
        from assay.training.recipe import recipe_reference

        click.echo(recipe_reference(), nl=False)
    else:
        from assay.workflows.pipeline.config import pipeline_reference

        click.echo(pipeline_reference(), nl=False)
