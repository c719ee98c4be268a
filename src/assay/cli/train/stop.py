"""`assay train stop RUN`: ask a run to commit and stop, wherever it was started."""

import click

from assay.base.errors import ConfigError
from assay.cli.parameters import RUN, current_home


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
def stop(run_id: str) -> None:
    """Ask RUN to commit after its current step and stop; do not wait for it.

    The last launch is recorded in the run's folder: a Slurm job is cancelled, a process on this host gets
    SIGTERM. A process on another host is named with its host. 'assay train --resume RUN' continues from the
    last commit.
    """
    from assay.launchers.launches import last_launch, state_of
    from assay.launchers.launches import stop as stop_launch

    launch = last_launch(current_home().run(run_id))
    if launch is None:
        raise ConfigError(f"run '{run_id}': there is no record of where it was started.")
    if state_of(launch) == "ended":
        click.echo(f"run {run_id}: {launch.where()} has ended; nothing to stop")
        return
    stop_launch(launch)
    click.echo(f"run {run_id}: {launch.where()} was asked to commit and stop")
