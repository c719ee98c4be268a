"""`assay join RUN`: one more node of a run that is led on another."""

import click

from assay.cli.given import RUN, given_home, python_graders_option, tell_python_graders


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@python_graders_option
def join(run_id: str, python_graders: str | None) -> None:
    """Lend this machine to RUN, which a supervisor leads on several nodes, until the run is over.

    Start it where the run's folder is seen as on the other nodes. It gets ranks in the run's next attempt, as
    many as the other nodes have; where the time that saves is worth a restart, the run commits for it and goes
    on with them. SIGTERM gives the machine back: the run commits, and the others go on. No bit of the weights
    changes.
    """
    tell_python_graders(python_graders)
    home = given_home()
    home.run(run_id)
    from assay.launch.ranks.faults import WAITS_OUTSIDE
    from assay.launch.ranks.nodes import join_lead
    from assay.launch.run import existing_run

    join_lead(
        existing_run(home, run_id), waits=lambda: click.echo(f"run {run_id}: this machine {WAITS_OUTSIDE}")
    )
