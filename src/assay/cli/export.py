"""`assay export RUN`: a run's model as a folder that other tools load."""

from pathlib import Path
from typing import Literal

import click

from assay.cli.given import FOLDER, PATH, force_option, given_home, is_forced, run_and_step


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--step", type=click.IntRange(min=0), help="Of which commit; by default the last one. Also RUN@STEP."
)
@click.option("--to", type=FOLDER, help="Folder to make; by default RUN-stepN here.")
@force_option
@click.option("--tokenizer", type=PATH, help="Its tokenizer.json, where the dataset does not hold it.")
@click.option(
    "--adapters",
    type=click.Choice(["merged", "apart"]),
    default="merged",
    help="Of a run with method.model.lora: adapters added to the weights (merged), or alone, for PEFT (apart).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the record of what was exported (docs/json.md).")
def export(
    run_id: str,
    step: int | None,
    to: Path | None,
    tokenizer: Path | None,
    adapters: Literal["merged", "apart"],
    as_json: bool,
) -> None:
    """Write the model of RUN to a folder: safetensors, tokenizer, configuration, and a card with its evidence.

    transformers loads the folder, without assay. The card (README.md) says of data, recipe, training,
    evaluation and audit what the records say, and no more; first of all what the model's numbers warn of, which
    stands on stderr, too.
    """
    home = given_home()
    run_id, of_name = run_and_step(home, run_id)
    run_id = home.meant_run(run_id)
    from assay.reporting.terminal.terminal import show_progress, warn_of_model
    from assay.workflows.export.export import export_run

    exported = export_run(
        home,
        run_id,
        step=of_name if step is None else step,
        to=to,
        is_forced=is_forced(),
        tokenizer=tokenizer,
        adapters=adapters,
        progress=lambda done, total: show_progress("export", done, total, unit=" parts"),
    )
    warn_of_model(exported.record.warning_rules, exported.record.warnings)
    if as_json:
        click.echo(exported.record.to_json())
    else:
        record = exported.record
        answers = record.form != "language_model" and record.base_sha256 is None
        ask = f"assay predict {exported.folder} FILE · " if answers else ""
        click.echo(
            f"{exported.folder}: run {exported.record.run_id} at step {exported.record.step:,}, weights "
            f"{exported.record.weights_digest[:16]}…\nnext: {ask}read {exported.folder}/README.md"
        )
