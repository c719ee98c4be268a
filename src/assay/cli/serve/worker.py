"""`assay serve worker`: run the jobs of `assay serve`."""

import click

from assay.cli.command import Command
from assay.cli.launch_target import OPTION_SECTIONS, LaunchTarget, launch_target_options
from assay.cli.parameters import current_home, log_format_option, python_graders_option, set_python_graders


@click.command(cls=Command, sections={"Operation": ("metrics_address", "log_format"), **OPTION_SECTIONS})
@click.option(
    "--runs-at-once", type=click.IntRange(min=1), default=1, help="Number of runs that train at the same time."
)
@click.option(
    "--every", "interval_s", type=click.FloatRange(min=0.05, max=2.0), default=1.0, help="Polling interval in seconds."
)
@click.option(
    "--engines",
    type=click.IntRange(min=0),
    default=2,
    help="Maximum number of models loaded for evals and batches; 0 leaves these to other workers.",
)
@click.option(
    "--engine-memory", type=click.FloatRange(min=0, min_open=True), help="Memory limit of all loaded models, in GB."
)
@click.option(
    "--metrics-address", metavar="HOST:PORT", help="Serve /healthz, /readyz and /metrics of this worker there."
)
@click.option("--until-idle", is_flag=True, help="Exit when no job is left that can make progress.")
@python_graders_option
@log_format_option
@launch_target_options
def worker(
    runs_at_once: int,
    interval_s: float,
    engines: int,
    engine_memory: float | None,
    metrics_address: str | None,
    until_idle: bool,
    python_graders: str | None,
    target: LaunchTarget,
) -> None:
    """Validate, train and monitor the jobs in $ASSAY_HOME/api, on this machine or a cluster, until stopped.

    Evals and batches run here, next to the training runs, with models that the worker loads itself.

    Runs are separate processes: they continue when a worker stops or dies, and the next worker finds them. Any
    number of workers may run on any machines that see the folder. With '--on slurm' the runs are jobs of a
    cluster; the worker itself stays where it was started, e.g. on a login node.
    """
    target.check_several_runs("a worker")
    set_python_graders(python_graders)
    from assay.launchers.local import BackgroundLauncher
    from assay.workers.batch.process import run_worker

    home = current_home()
    run_worker(
        home,
        target.launcher(home, ()) or BackgroundLauncher(home),
        runs_at_once=runs_at_once,
        max_models=engines,
        max_bytes=None if engine_memory is None else int(engine_memory * 1e9),
        interval_s=interval_s,
        until_idle=until_idle,
        metrics_address=metrics_address,
        notify=lambda text: click.echo(text, err=True),
    )
