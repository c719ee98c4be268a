"""`assay worker`: works at the jobs that `assay serve` was asked for."""

import click

from assay.cli.given import given_home, python_graders_option, tell_python_graders
from assay.cli.train_on import PlaceOptions, place_options


@click.command()
@click.option(
    "--runs-at-once",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Runs that train at a time.",
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.05, max=2.0),
    default=1.0,
    show_default=True,
    help="Seconds a look.",
)
@click.option(
    "--engines",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Models that are loaded at a time for evals and batches; 0 leaves those to other workers.",
)
@click.option(
    "--engine-memory",
    type=click.FloatRange(min=0, min_open=True),
    help="GB that loaded models may have together.",
)
@click.option("--until-idle", is_flag=True, help="Leave when no job is left that goes on by itself.")
@python_graders_option
@place_options
def worker(
    runs_at_once: int,
    every_s: float,
    engines: int,
    engine_memory: float | None,
    until_idle: bool,
    python_graders: str | None,
    place: PlaceOptions,
) -> None:
    """Validate, train and watch the jobs of $ASSAY_HOME/api, on this machine or a cluster, until told to stop.

    Evals are graded and batches answered here, beside the runs, by models that the worker loads itself.

    Runs are processes of their own: they go on when a worker leaves or dies, and the next worker finds them.
    Any number of workers may run, on any machine that sees the folder. With '--on slurm' the runs are jobs of a
    cluster; the worker itself stays where it was started, e.g. on a login node.
    """
    if place.on == "allocation" or place.dry_run:
        wrong = "--dry-run" if place.dry_run else "--on allocation"
        raise click.UsageError(f"{wrong} is of one run; a worker starts its runs by '--on slurm', or here.")
    tell_python_graders(python_graders)
    from assay.launchers.local import BackgroundLauncher
    from assay.workers.batch.process import WorkersEngines, run_worker

    home = given_home()
    most_bytes = None if engine_memory is None else int(engine_memory * 1e9)
    run_worker(
        home,
        place.launcher(home, ()) or BackgroundLauncher(home),
        runs_at_once=runs_at_once,
        engines=WorkersEngines(engines, most_bytes),
        every_s=every_s,
        until_idle=until_idle,
        say=lambda text: click.echo(text, err=True),
    )
