"""`assay runs export`, `sink`, `import`: models and metrics, for other tools and from them."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.parameters import (
    FOLDER,
    PATH,
    RUN,
    SOURCE_PATH,
    current_home,
    current_sessions,
    force_option,
    is_forced,
    is_session,
    json_option,
    run_and_step,
    writable_ledger,
)

if TYPE_CHECKING:
    from assay.workflows.export.export import Exported


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--step", type=click.IntRange(min=0), help="Step of the commit to export; by default the last one. Also RUN@STEP."
)
@click.option("--out", type=FOLDER, help="Output folder; by default ./RUN-stepN.")
@force_option
@click.option("--tokenizer", type=PATH, help="The tokenizer.json of the run, if its dataset does not contain it.")
@click.option(
    "--adapters",
    type=click.Choice(["merged", "apart"]),
    default="merged",
    help="With method.model.lora: merge the adapters into the weights (merged), or write them alone for PEFT (apart).",
)
@json_option
def export(
    run_id: str,
    step: int | None,
    out: Path | None,
    tokenizer: Path | None,
    adapters: Literal["merged", "apart"],
    as_json: bool,
) -> None:
    """Write the model of RUN to a folder: safetensors, tokenizer, configuration and a model card.

    transformers loads the folder without assay. The model card (README.md) describes data, recipe, training,
    evaluation and audit from the records. Warnings about the model are printed on stderr and stand first on the
    card.

    RUN may be a session of the Tinker API (SESSION:train:NUMBER if it has several models), or the path of saved
    weights. Its steps are the 'optim_step' requests; any of them can be exported.
    """
    if is_session(name := run_id.partition("@")[0]) or name.startswith("tinker://"):
        if tokenizer is not None:
            raise ConfigError("--tokenizer is for runs; a session's base model names its tokenizer.")
        if step is None and "@" in run_id:
            step = click.INT(run_id.partition("@")[2])
        from assay.workers.sessions.export import export_session, record_export

        exported = export_session(current_sessions(), name, step=step, to=out, adapters=adapters, is_forced=is_forced())
        record_export(current_home(), exported)
        _print_export(exported, as_json)
        return
    home = current_home()
    run_id, named_step = run_and_step(home, run_id)
    run_id = home.meant_run(run_id)
    from assay.reporting.terminal.terminal import show_progress, warn_of_model
    from assay.workflows.export.export import export_run

    exported = export_run(
        home,
        run_id,
        step=named_step if step is None else step,
        to=out,
        is_forced=is_forced(),
        tokenizer=tokenizer,
        adapters=adapters,
        progress=lambda done, total: show_progress("export", done, total, unit=" parts"),
    )
    warn_of_model(exported.record.warning_rules, exported.record.warnings)
    _print_export(exported, as_json)


def _print_export(exported: "Exported", as_json: bool) -> None:
    if as_json:
        click.echo(exported.record.to_json())
    else:
        record = exported.record
        can_predict = record.form != "language_model" and record.base_sha256 is None
        next_command = f"assay eval predict {exported.folder} FILE · " if can_predict else ""
        click.echo(
            f"{exported.folder}: run {exported.record.run_id} at step {exported.record.step:,}, weights "
            f"{exported.record.weights_digest[:16]}…\nnext: {next_command}read {exported.folder}/README.md"
        )


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.argument("sinks", metavar="KIND:WHERE...", nargs=-1, required=True)
@click.option("--once", is_flag=True, help="Send the existing metrics only, and do not wait for the end of the run.")
def sink(run_id: str, sinks: tuple[str, ...], once: bool) -> None:
    """Send the metrics of RUN to other tools while they are measured, until the run ends.

    Targets: tensorboard:FOLDER, mlflow:SERVER_OR_FOLDER, wandb:FOLDER (offline; 'wandb sync' uploads it),
    trackio:FOLDER. The command only reads files, so it does not slow down training; when it is started again, it
    continues where it stopped. 'sinks' in $ASSAY_HOME/settings.yaml starts it for every run.
    """
    from assay.base.units import number_of
    from assay.trackers.follow import SinkName, follow

    run, names = current_home().run(run_id), [SinkName.parse(text) for text in sinks]
    if len(names) > 1:  # one process per sink, so a failing one does not stop the others
        command = [sys.executable, "-m", "assay", "runs", "sink", run_id, *(["--once"] if once else [])]
        running = [subprocess.Popen([*command, text]) for text in dict.fromkeys(sinks)]
        sys.exit(max(process.wait() for process in running))
    num_points = follow(run, names[0], SystemClock(), until_ended=not once)
    click.echo(f"{names[0].kind}: {number_of(num_points, 'point')} sent to {names[0].where}")


@click.command(name="import")
@click.argument("source", type=SOURCE_PATH)
@click.option(
    "--from",
    "tool",
    type=click.Choice(["mlflow", "neptune", "tensorboard", "trackio", "wandb"]),
    help="Tool that wrote SOURCE; by default found out from its files.",
)
@json_option
def import_(source: Path, tool: str | None, as_json: bool) -> None:
    """Import the runs of another tracker from SOURCE: their metrics, parameters, tags and status.

    SOURCE is a folder of TensorBoard event files, MLflow's folder or SQLite file, a folder with offline runs of
    W&B, a trackio project, or the data folder of neptune-exporter. It is only read, and its tool need not be
    installed. When the command is started again, it adds only what is new. Damaged parts are left out and reported.
    """
    from assay.reporting.documents.runs.run_list import imports_table
    from assay.reporting.terminal.table import print_table
    from assay.reporting.views.view import json_list
    from assay.trackers.importers.folder import import_runs

    home = current_home()
    with writable_ledger(home) as ledger:
        lines = list(import_runs(home, ledger, source, tool))
    if as_json:
        click.echo(json_list(lines))
        return
    print_table(imports_table(lines))
    for line in lines:
        for text in line.left_out:
            click.secho(f"{line.run_id}: left out: {text}", err=True, fg="yellow")
