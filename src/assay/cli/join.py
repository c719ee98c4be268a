"""`assay join RUN`: one more node of a run that is led on another."""

import os
from typing import TYPE_CHECKING, Any

import click

from assay.cli.given import RUN, given_home, python_graders_option, tell_python_graders

if TYPE_CHECKING:
    from assay.launchers.slurm.launcher import SlurmConfig
    from assay.records.run import Run
    from assay.store.home import Home


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.option(
    "--on",
    type=click.Choice(["here", "slurm"]),
    metavar="PLACE",
    default="here",
    show_default=True,
    help="'here': lend this machine; 'slurm': submit a job for each of some nodes, which lends it.",
)
@click.option("--nodes", type=int, help="slurm: how many.  [1]")
@click.option("--partition", help="slurm: where the jobs queue; by default the cluster's choice.")
@click.option("--time", help="slurm: time limit, e.g. 12:00:00. Then the node is lent anew.")
@click.option(
    "--requeue/--no-requeue",
    default=None,
    help="slurm: lend a node anew after a preemption, a time limit or a drain.  [requeue]",
)
@click.option("--sbatch", multiple=True, metavar="OPTION", help="slurm: one more option of sbatch.")
@click.option("--dry-run", is_flag=True, help="slurm: print the jobs' script; submit and write nothing.")
@click.option("--lent", is_flag=True, hidden=True, help="A job lends it, which may do so again.")
@python_graders_option
def join(run_id: str, on: str, dry_run: bool, lent: bool, python_graders: str | None, **slurm: Any) -> None:
    """Lend this machine to RUN, which a supervisor leads on several nodes, until the run is over.

    Start it where the run's folder is seen as on the other nodes. It gets ranks in the run's next attempt, as
    many as the other nodes have; where the time that saves is worth a restart, the run commits for it and goes
    on with them. SIGTERM gives the machine back: the run commits, and the others go on. No bit of the weights
    changes. With '--on slurm' nodes of the cluster are lent, each as soon as there is one.
    """
    given = {name: value for name, value in slurm.items() if value not in (None, ())}
    if on == "here" and (given or dry_run):
        wrong = next(iter(given), "dry_run").replace("_", "-")
        raise click.UsageError(f"--{wrong} is Slurm's: add '--on slurm'.")
    tell_python_graders(python_graders)
    home = given_home()
    home.run(run_id)
    from assay.store.commit_log import CommitLog
    from assay.store.objects import open_store
    from assay.workflows.run import existing_run, finished_entry

    run = existing_run(home, run_id)
    if finished_entry(CommitLog(open_store(run.store_url))) is not None:
        click.echo(f"run {run_id} has finished: it needs no more nodes", err=True)
    elif on == "slurm":
        _lend(home, run, _config(given), dry_run=dry_run)
    else:
        _join(run, lent=lent)


def _join(run: "Run", *, lent: bool) -> None:
    from assay.elastic.faults import WAITS_OUTSIDE
    from assay.elastic.nodes.group import join_lead
    from assay.launchers.slurm.drain import JobNodes, heeding_drains
    from assay.launchers.slurm.launcher import STOPPED_EARLY

    with heeding_drains(JobNodes.from_environment(os.environ)):
        was_stopped = join_lead(run, lambda: click.echo(f"run {run.run_id}: this machine {WAITS_OUTSIDE}"))
    if was_stopped and lent:
        click.get_current_context().exit(STOPPED_EARLY)


def _config(given: dict[str, Any]) -> "SlurmConfig":
    from assay.base.config import LoadedConfig, validated
    from assay.launchers.slurm.launcher import SlurmConfig

    return validated(SlurmConfig, LoadedConfig(given, dict.fromkeys(given, "command line")))


def _lend(home: "Home", run: "Run", config: "SlurmConfig", *, dry_run: bool) -> None:
    from assay.launchers.slurm.lend import lend, lend_script

    if dry_run:
        from assay.reporting.terminal.terminal import print_file

        print_file(lend_script(home, run, config))
        return
    job = lend(home, run, config)
    click.echo(
        f"run {run.run_id}: Slurm job {job} lends a node as soon as there is one\n  stop:   scancel {job}"
    )
