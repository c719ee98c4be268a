"""`assay train new DATASET`, `assay train import JOB`: write a first recipe for a dataset, or for a hosted job."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.parameters import DATASET, FILE, FOLDER, OUT_FILE, force_option

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


@click.command(name="import")
@click.argument("job", type=FILE)
@click.option("--model", type=FOLDER, required=True, help="Folder of the model to fine-tune, with tokenizer.json.")
@click.option("--training", type=FILE, required=True, help="The job's training file.")
@click.option("--validation", type=FILE, help="The job's validation file; its rows are held out.")
@click.option(
    "--answers", "old_outputs", type=FILE, help="JSONL of conversations that end with answers of the old model."
)
@click.option("--chat-template", help="A .jinja file, or 'chatml'.  [default: that of the model]")
@click.option("--out", type=FOLDER, required=True, help="New folder for dataset, recipe and suite.")
def import_(job: Path, out: Path, **files: Any) -> None:
    """Turn JOB, a hosted fine-tuning job of OpenAI, into a dataset, a recipe and a suite.

    JOB is the JSON that fine_tuning.jobs.retrieve returns; supervised, DPO and reinforcement jobs are supported. The
    suite scores each answer of a new model against the recorded one: 'assay eval run' prints the mean with its
    interval, and 0.5 means as good as the old model.
    """
    from assay.workflows.import_job import import_job

    found = import_job(job, out=out, **files)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"wrote {out}: {found.num_rows:,} rows, {found.num_items:,} items of the suite")
    click.echo(f"\nnext: assay train {out}/recipe.yaml --check\n      assay train {out}/recipe.yaml")
    if found.num_items:
        click.echo(
            f"      assay runs export RUN --out new-model\n      assay eval run new-model --suite {out}/suite.yaml"
        )


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
