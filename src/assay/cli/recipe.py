"""`assay recipe`: write the first recipe for a dataset."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.given import DATASET, OUT_FILE, CommandGroup, force_option

if TYPE_CHECKING:
    from assay.workflows.new_recipe import LanguageMethod


@click.group(cls=CommandGroup)
def recipe() -> None:
    """Recipes: what a run is. 'assay train --keys' describes every key."""


@recipe.command()
@click.argument("dataset", type=DATASET)
@click.option("--out", type=OUT_FILE, help="The file to write.  [default: print it]")
@force_option
@click.option("--name", help="Of the runs.  [default: the dataset's]")
@click.option(
    "--model",
    "--encoder",
    help="Folder of a pretrained model, or package:NAME/FOLDER.  [default: a new, small one]",
)
@click.option(
    "--method",
    type=click.Choice(["sft", "reward", "dpo", "grpo"]),
    help="What learns from rows for a language model.  [default: sft of texts and chats, reward of pairs, "
    "grpo of prompts]",
)
@click.option("--epochs", type=click.IntRange(min=1), help="Passes over the rows.  [default: by their number]")
def new(
    dataset: Path,
    out: Path | None,
    name: str | None,
    model: str | None,
    method: "LanguageMethod | None",
    epochs: int | None,
) -> None:
    """Write a recipe that fits DATASET and this machine, each line explained; it trains as it is.

    What is learned follows from the labels, or from the format of rows for a language model; the token budget
    from the rows' lengths, lanes and the model's size from this machine, steps and commits from the number of
    rows.
    """
    from assay.reporting.documents.render import write_file
    from assay.reporting.terminal.terminal import print_file
    from assay.workflows.new_recipe import new_recipe

    found = new_recipe(dataset, name=name, model=model, epochs=epochs, method=method)
    for warning in found.warnings:
        click.echo(f"warning: {warning.with_cure().text}", err=True)
    if out is None:
        print_file(found.text)
        return
    write_file(out, found.text)
    click.echo(f"wrote {out}\n\nnext: assay train {out} --check\n      assay train {out}")
