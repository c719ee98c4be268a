"""`assay train join`, `resize`, `stop`: add nodes to a run, change their number, and end it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.base.errors import ConfigError
from assay.cli.command import Command
from assay.cli.parameters import RUN, current_home, python_graders_option, set_python_graders

if TYPE_CHECKING:
    from assay.records.run import Run
    from assay.store.home import Home


_SECTIONS = {"Slurm": ("nodes", "partition", "time", "requeue", "sbatch", "dry_run")}


@click.command(cls=Command, sections=_SECTIONS)
@click.argument("run_id", metavar="RUN", type=RUN)
@click.option(
    "--on",
    type=click.Choice(["here", "slurm"]),
    metavar="TARGET",
    default="here",
    help="Which machine joins: this one (here), or nodes of the cluster, by one job each (slurm).",
)
@click.option("--nodes", type=int, help="slurm: number of nodes.  [1]")
@click.option("--partition", help="slurm: partition of the jobs; by default the cluster's default.")
@click.option("--time", help="slurm: time limit, e.g. 12:00:00; the job is then requeued.")
@click.option(
    "--requeue/--no-requeue",
    default=None,
    help="slurm: requeue the job after a preemption, a time limit or a drain.  [requeue]",
)
@click.option("--sbatch", multiple=True, metavar="OPTION", help="slurm: additional option of sbatch. May be repeated.")
@click.option("--dry-run", is_flag=True, help="slurm: print the job script; submit and write nothing.")
@python_graders_option
def join(run_id: str, on: str, dry_run: bool, python_graders: str | None, **slurm: Any) -> None:
    """Add this machine to RUN, which a supervisor leads on several nodes, until the run ends.

    Start it where the run's folder has the same path as on the other nodes. The machine gets ranks in the run's
    next attempt, as many as the other nodes have; if the expected gain is worth a restart, the run commits and
    restarts with them. SIGTERM releases the machine: the run commits, and the other nodes continue. The weights
    stay the same bit for bit. With '--on slurm', nodes of the cluster join as soon as they are allocated.
    The exit code is 0 if the run is finished, and 75 if the machine leaves it before.
    """
    slurm_options = {name: value for name, value in slurm.items() if value not in (None, ())}
    if on == "here" and (slurm_options or dry_run):
        wrong = next(iter(slurm_options), "dry_run").replace("_", "-")
        raise click.UsageError(f"--{wrong} is an option of Slurm: add '--on slurm'.")
    set_python_graders(python_graders)
    home = current_home()
    home.run(run_id)
    from assay.store.commit_log import CommitLog
    from assay.store.objects import open_store
    from assay.workflows.run import finished_entry, load_run

    run = load_run(home, run_id)
    if finished_entry(CommitLog(open_store(run.store_url))) is not None:
        click.echo(f"run {run_id} has finished: it needs no more nodes", err=True)
    elif on == "slurm":
        _lend(home, run, slurm_options, dry_run=dry_run)
    else:
        _join(run)


def _join(run: "Run") -> None:
    from assay.elastic.faults import WAITS_OUTSIDE
    from assay.elastic.nodes.connection import STOPPED_EARLY
    from assay.elastic.nodes.node import RunNode
    from assay.elastic.nodes.server import leader_address
    from assay.launchers.slurm.drain import JobNodes, watching_drains

    leader_address(Path(run.run_dir))  # raises if nobody leads
    node = RunNode(run, index=None, notify=click.echo)
    with watching_drains(JobNodes.from_environment(os.environ)):
        role = node.next_role(lambda: click.echo(f"run {run.run_id}: this machine {WAITS_OUTSIDE}"))
    if role == "left":
        click.get_current_context().exit(STOPPED_EARLY)


def _lend(home: "Home", run: "Run", slurm_options: dict[str, Any], *, dry_run: bool) -> None:
    from assay.base.config import validated_options
    from assay.launchers.slurm.launcher import SlurmConfig
    from assay.launchers.slurm.lend import lend, lend_script

    config = validated_options(SlurmConfig, slurm_options)
    if dry_run:
        from assay.reporting.terminal.terminal import print_file

        print_file(lend_script(home, run, config))
        return
    job = lend(home, run, config)
    click.echo(f"run {run.run_id}: Slurm job {job} joins as soon as it gets a node\n  stop:   scancel {job}")


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


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.option("--nodes", "num_nodes", type=click.IntRange(min=1), required=True, help="Number of nodes from now on.")
def resize(run_id: str, num_nodes: int) -> None:
    """Give RUN, a Job of Kubernetes, more or fewer nodes, within its --workers A..B.

    New nodes join; removed ones leave after a commit. The weights stay the same bit for bit. From then on the run
    does not change its size by itself.
    """
    from assay.launchers.kubernetes.launcher import resize as resize_job
    from assay.launchers.launches import last_launch

    launch = last_launch(current_home().run(run_id))
    if launch is None or launch.launcher != "kubernetes":
        raise ConfigError(f"run '{run_id}' is not a Job of Kubernetes. 'assay train join' adds nodes to other runs.")
    resize_job(launch, num_nodes)
    click.echo(f"run {run_id}: {launch.where()} gets {num_nodes} nodes")
