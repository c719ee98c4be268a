"""`assay predict MODEL FILE`: a run's or an exported model answers for the rows of a file."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.cli.given import FILE, OUT_FILE, PATH, force_option, given_home, run_and_step

if TYPE_CHECKING:
    from assay.workflows.export.predict import Predictor


@click.command()
@click.argument("model")
@click.argument("file", type=FILE)
@click.option(
    "-o", "--out", type=OUT_FILE, help="*.csv, *.tsv, *.jsonl or *.parquet; by default JSON lines on stdout."
)
@force_option
@click.option("--text", help="Column of the text; by default that of the model's dataset, or 'text'.")
@click.option(
    "--missing", multiple=True, metavar="COLUMN", help="The model reads it, and FILE has not. May be repeated."
)
@click.option("--tokenizer", type=PATH, help="Of a run whose dataset does not hold it.")
def predict(
    model: str, file: Path, out: Path | None, text: str | None, missing: tuple[str, ...], tokenizer: Path | None
) -> None:
    """Ask MODEL about every row of FILE; print the rows in their order, each with the model's answers.

    MODEL is a classifier or a reward model: a folder that 'assay export' wrote, a RUN, or RUN@STEP for one
    of its commits. FILE is CSV, TSV, JSON lines, Parquet, Arrow, or text (a row a line). A file of any length
    is read some rows at a time. A row without text keeps its place, its answers empty. What the model's
    numbers warn of stands on stderr.
    """
    from assay.workflows.export.row_files import refuse_without_text, row_writer

    if out is not None and out.resolve() == file.resolve():
        raise ConfigError(f"-o {out}: that is the file that is read. Name another.")
    if text is not None:  # what a model reads by itself, it says itself
        refuse_without_text(file, text)
    with row_writer(out) as writer:
        predictor = _predictor(model, tokenizer)
        from assay.reporting.terminal.terminal import show_progress
        from assay.workflows.export.predict import predict_rows

        if unread := [name for name in missing if name not in predictor.columns]:
            read = ", ".join(predictor.columns) or "none"
            raise ConfigError(f"--missing {unread[0]}: the model does not read it; it reads: {read}.")

        def progress(done: int, total: int) -> None:
            show_progress("predict", done, total, unit=" parts")

        empty: list[str] = []
        num_rows = 0
        for rows in predict_rows(
            predictor, file, text=text, missing=missing, progress=progress, textless=empty.append
        ):
            writer.write(rows)
            num_rows += len(rows)
    if out is not None:
        click.echo(f"{number_of(num_rows - len(empty), 'row')} answered, in {out}", err=True)
    if empty:
        click.echo(
            f"{number_of(len(empty), 'row')} without text: kept, with no answer (the first: {empty[0]})",
            err=True,
        )


def _predictor(model: str, tokenizer: Path | None) -> "Predictor":
    """Loaded, once all is said that can be said without torch."""
    from assay.records.exported_model import EXPORT_FILE

    folder = Path(model)
    if (folder / EXPORT_FILE).is_file():
        if tokenizer is not None:
            raise ConfigError(f"--tokenizer: {folder} holds its own. Leave it out.")
        from assay.records.exported_model import ExportedModel
        from assay.reporting.terminal.terminal import warn_of_model
        from assay.workflows.export.predict import exported_predictor

        predictor = exported_predictor(folder)
        record = ExportedModel.from_json((folder / EXPORT_FILE).read_bytes(), source=folder / EXPORT_FILE)
        warn_of_model(record.warning_rules, record.warnings)
        return predictor
    home = given_home()
    if folder.is_dir() and ("/" in model or not home.has_run(model)):
        raise ConfigError(
            f"{folder}: no model there (no {EXPORT_FILE}). 'assay export RUN --to FOLDER' makes one."
        )
    run_id, step = run_and_step(home, model)
    from assay.store.commit_log import CommitLog
    from assay.store.objects import open_store
    from assay.workflows.run import chosen_commit, existing_run

    run = existing_run(home, run_id)
    commit = chosen_commit(run, CommitLog(open_store(run.store_url)), step)
    from assay.reporting.terminal.terminal import warn_of_model
    from assay.workflows.export.export_warnings import warnings_of_commit
    from assay.workflows.export.predict import run_predictor

    predictor = run_predictor(run, commit, tokenizer=tokenizer)
    warned = warnings_of_commit(run, commit)
    warn_of_model([each.rule for each in warned], [each.text for each in warned])
    return predictor
