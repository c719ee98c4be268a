"""`assay eval predict MODEL FILE`: predict for the rows of a file with a run's or an exported model."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.cli.parameters import FILE, OUT_FILE, PATH, current_home, force_option, run_and_step

if TYPE_CHECKING:
    from assay.workflows.export.predict import Predictor


@click.command()
@click.argument("model")
@click.argument("file", type=FILE)
@click.option(
    "--out", type=OUT_FILE, help="Output file: *.csv, *.tsv, *.jsonl or *.parquet; by default JSON lines on stdout."
)
@force_option
@click.option("--text", help="Text column; by default that of the model's dataset, or 'text'.")
@click.option(
    "--missing", multiple=True, metavar="COLUMN", help="Column that the model reads and FILE lacks. May be repeated."
)
@click.option("--tokenizer", type=PATH, help="Tokenizer of a run whose dataset does not contain it.")
def predict(
    model: str, file: Path, out: Path | None, text: str | None, missing: tuple[str, ...], tokenizer: Path | None
) -> None:
    """Predict for every row of FILE with MODEL; print the rows in order, each with its predictions.

    MODEL is a classifier or a reward model: a folder written by 'assay runs export', a RUN, or RUN@STEP for one of
    its commits. FILE is CSV, TSV, JSON lines, Parquet, Arrow, or text with one row per line, of any length. A
    row without text keeps its position and gets empty predictions. Warnings about the model are printed on
    stderr.
    """
    from assay.workflows.export.row_files import check_text_column, row_writer

    if out is not None and out.resolve() == file.resolve():
        raise ConfigError(f"--out {out}: this is the input file. Name another output file.")
    if text is not None:  # without --text the model names its column, once it is loaded
        check_text_column(file, text)
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
        for rows in predict_rows(predictor, file, text=text, missing=missing, progress=progress, textless=empty.append):
            writer.write(rows)
            num_rows += len(rows)
    if out is not None:
        click.echo(f"{number_of(num_rows - len(empty), 'row')} predicted, in {out}", err=True)
    if empty:
        click.echo(
            f"{number_of(len(empty), 'row')} without text: kept, without a prediction (the first: {empty[0]})",
            err=True,
        )


def _predictor(model: str, tokenizer: Path | None) -> "Predictor":
    """Load the model; report errors that need no torch first."""
    from assay.records.exported_model import EXPORT_FILE

    folder = Path(model)
    if (folder / EXPORT_FILE).is_file():
        if tokenizer is not None:
            raise ConfigError(f"--tokenizer: {folder} contains its tokenizer. Leave the option out.")
        from assay.records.exported_model import ExportedModel
        from assay.reporting.terminal.terminal import warn_of_model
        from assay.workflows.export.predict import exported_predictor

        predictor = exported_predictor(folder)
        record = ExportedModel.from_json((folder / EXPORT_FILE).read_bytes(), source=folder / EXPORT_FILE)
        warn_of_model(record.warning_rules, record.warnings)
        return predictor
    home = current_home()
    if folder.is_dir() and ("/" in model or not home.has_run(model)):
        raise ConfigError(
            f"{folder}: no exported model (no {EXPORT_FILE}). Create one with 'assay runs export RUN --out FOLDER'."
        )
    run_id, step = run_and_step(home, model)
    from assay.store.commit_log import CommitLog
    from assay.store.objects import open_store
    from assay.workflows.run import find_commit, load_run

    run = load_run(home, run_id)
    commit = find_commit(run, CommitLog(open_store(run.store_url)), step)
    from assay.reporting.terminal.terminal import warn_of_model
    from assay.reporting.views.warnings import warning_text
    from assay.workflows.export.export_warnings import warnings_of_commit
    from assay.workflows.export.predict import run_predictor

    predictor = run_predictor(run, commit, tokenizer=tokenizer)
    warned = warnings_of_commit(run, commit)
    warn_of_model([warning.rule for warning in warned], map(warning_text, warned))
    return predictor
