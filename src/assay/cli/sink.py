"""`assay sink RUN KIND:WHERE`: a run's metrics in TensorBoard, MLflow or W&B, live."""

import subprocess
import sys

import click

from assay.base.clock import SystemClock
from assay.cli.given import RUN, given_home


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.argument("sinks", metavar="KIND:WHERE...", nargs=-1, required=True)
@click.option("--once", is_flag=True, help="Hand over what is there, and do not wait for the run's end.")
def sink(run_id: str, sinks: tuple[str, ...], once: bool) -> None:
    """Hand the metrics of RUN to other tools as they are measured, until the run has ended.

    tensorboard:FOLDER, mlflow:SERVER_OR_FOLDER, wandb:FOLDER (offline; 'wandb sync' sends it). It reads files
    only, so training does not notice; started again, it goes on where it was. 'sinks' in
    $ASSAY_HOME/settings.yaml starts it beside every run.
    """
    from assay.base.units import number_of
    from assay.trackers.follow import SinkName, follow

    run, names = given_home().run(run_id), [SinkName.parse(text) for text in sinks]
    if len(names) > 1:  # a process each: all are live, and one that fails stops no other
        command = [sys.executable, "-m", "assay", "sink", run_id, *(["--once"] if once else [])]
        running = [subprocess.Popen([*command, text]) for text in dict.fromkeys(sinks)]
        sys.exit(max(process.wait() for process in running))
    num_points = follow(run, names[0], SystemClock(), until_ended=not once)
    click.echo(f"{names[0].kind}: {number_of(num_points, 'point')} handed over to {names[0].where}")
