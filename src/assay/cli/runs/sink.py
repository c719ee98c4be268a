"""`assay runs sink RUN KIND:WHERE`: send the metrics of a run to TensorBoard, MLflow or W&B."""

import subprocess
import sys

import click

from assay.base.clock import SystemClock
from assay.cli.parameters import RUN, current_home


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.argument("sinks", metavar="KIND:WHERE...", nargs=-1, required=True)
@click.option("--once", is_flag=True, help="Send the existing metrics only, and do not wait for the end of the run.")
def sink(run_id: str, sinks: tuple[str, ...], once: bool) -> None:
    """Send the metrics of RUN to other tools while they are measured, until the run ends.

    Targets: tensorboard:FOLDER, mlflow:SERVER_OR_FOLDER, wandb:FOLDER (offline; 'wandb sync' uploads it). The
    command only reads files, so it does not slow down training; when it is started again, it continues where it
    stopped. 'sinks' in $ASSAY_HOME/settings.yaml starts it for every run.
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
