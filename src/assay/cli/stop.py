"""`assay stop RUN`: ask a run to commit and leave, wherever it was started and whoever started it."""

import click

from assay.base.errors import ConfigError
from assay.cli.given import RUN, given_home


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
def stop(run_id: str) -> None:
    """Ask RUN to commit at its next step and leave; does not wait for it.

    Its last launch is on record in its folder: a Slurm job is cancelled, a process on this host gets SIGTERM. A
    process on another host is named, with the host. 'assay train --resume RUN' goes on from the last commit.
    """
    from assay.launchers.launches import last_launch, state_of
    from assay.launchers.launches import stop as stop_launch

    launch = last_launch(given_home().run(run_id))
    if launch is None:
        raise ConfigError(f"run '{run_id}': there is no record of where it was started.")
    if state_of(launch) == "ended":
        click.echo(f"run {run_id}: {launch.where()} has ended; nothing to stop")
        return
    stop_launch(launch)
    click.echo(f"run {run_id}: {launch.where()} was asked to commit and leave")
