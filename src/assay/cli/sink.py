"""`assay sink RUN KIND:WHERE`: a run's metrics in TensorBoard, MLflow or W&B, live."""

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
    from assay.launch.sinks.follow import SinkName, follow

    run = given_home().run(run_id)
    names = [SinkName.parse(text) for text in sinks]
    for name, num_points in follow(run, names, SystemClock(), until_ended=not once).items():
        click.echo(f"{name.kind}: {number_of(num_points, 'point')} handed over to {name.where}")
