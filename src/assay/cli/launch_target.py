"""The options of `--on`, and launching a run elsewhere than in this process."""

import functools
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from assay.launchers.launcher import Launcher
    from assay.launchers.slurm.launcher import SlurmConfig
    from assay.records.run import Run
    from assay.store.home import Home


def print_warning(text: str) -> None:
    """Print a warning in yellow on stderr."""
    click.secho(text, err=True, fg="yellow")


LAUNCHERS = ("here", "background", "slurm", "allocation")


@dataclass(frozen=True)
class LaunchTarget:
    """The values of `--on` and the options that belong to it."""

    on: str
    slurm: dict[str, Any]
    """Options of Slurm that were given, by their names in `SlurmConfig`."""
    dry_run: bool
    launched: bool = False
    """Whether the process that started this one has recorded the launch."""
    workers_per_node: int | None = None
    """Maximum ranks of a node of an allocation; None: the ranks are shared by the present nodes."""

    def check(self, world_size: int) -> None:
        """Raise `ConfigError` for options that cannot work, before a run is created."""
        if self.on == "slurm":
            self.slurm_config().check_world_size(world_size)
        elif self.on == "allocation":
            from assay.launchers.slurm.allocation import Allocation

            Allocation.from_environment(os.environ)

    def num_nodes(self) -> int:
        if self.on == "allocation":
            from assay.launchers.slurm.allocation import Allocation

            return Allocation.from_environment(os.environ).num_nodes
        return self.slurm_config().nodes if self.on == "slurm" else 1

    def host(self) -> str | None:
        """Return the host that trains; None if Slurm chooses it."""
        return None if self.on == "slurm" else socket.gethostname()

    def slurm_config(self) -> "SlurmConfig":
        from assay.base.config import LoadedConfig, validated
        from assay.launchers.slurm.launcher import SlurmConfig

        return validated(SlurmConfig, LoadedConfig(self.slurm, dict.fromkeys(self.slurm, "command line")))

    def launcher(self, home: "Home", options: tuple[str, ...]) -> "Launcher | None":
        """Return the launcher of the run; None if this process trains it."""
        from assay.launchers.local import BackgroundLauncher
        from assay.launchers.slurm.launcher import SlurmLauncher

        if self.on == "slurm":
            return SlurmLauncher(home, self.slurm_config(), options)
        return BackgroundLauncher(home, options) if self.on == "background" else None


_OPTIONS = (
    click.option(
        "--on",
        type=click.Choice(LAUNCHERS),
        metavar="TARGET",
        default="here",
        help="Where to train: here, background, slurm or allocation.",
    ),
    click.option("--nodes", type=int, help="slurm: number of nodes, which share --workers evenly.  [1]"),
    click.option("--partition", help="slurm: partition of the job; by default the cluster's default."),
    click.option("--time", help="slurm: time limit, e.g. 12:00:00; a longer run continues in the requeued job."),
    click.option(
        "--grace", "grace_s", type=int, help="slurm: seconds before the time limit at which to commit and stop.  [120]"
    ),
    click.option(
        "--requeue/--no-requeue",
        default=None,
        help="slurm: requeue the job after a preemption, a time limit or a node failure.  [requeue]",
    ),
    click.option(
        "--sbatch",
        multiple=True,
        metavar="OPTION",
        help="slurm: additional option of sbatch, e.g. --sbatch=--gpus-per-node=8. May be repeated.",
    ),
    click.option(
        "--workers-per-node",
        type=click.IntRange(min=1),
        help="allocation: maximum ranks of a node, so nodes that join later get some; by default the present "
        "nodes share --workers.",
    ),
    click.option("--launched", is_flag=True, hidden=True, help="The launch is recorded already."),
    click.option("--dry-run", is_flag=True, help="slurm: print the job script; submit and write nothing."),
)
SLURM_OPTIONS = ("nodes", "partition", "time", "grace_s", "requeue", "sbatch", "workers_per_node", "dry_run")
"""Options of `--on slurm` and `--on allocation`, which help lists under a heading of their own."""
OF_SLURM = ("nodes", "partition", "time", "grace_s", "requeue", "sbatch")


def launch_target_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `--on` to a command, which gets them as one argument, `target`."""

    @functools.wraps(command)
    def with_launch_target(on: str, dry_run: bool, launched: bool, workers_per_node: int | None, **others: Any) -> None:
        slurm_options = {name: others.pop(name) for name in OF_SLURM}
        slurm = {name: value for name, value in slurm_options.items() if value not in (None, ())}
        if on != "slurm" and (slurm or dry_run):
            wrong = next(iter(slurm), "dry_run").removesuffix("_s").replace("_", "-")
            raise click.UsageError(f"--{wrong} is an option of Slurm: add '--on slurm'.")
        if on != "allocation" and workers_per_node is not None:
            raise click.UsageError("--workers-per-node needs '--on allocation'.")
        command(target=LaunchTarget(on, slurm, dry_run, launched, workers_per_node), **others)

    for option in reversed(_OPTIONS):
        with_launch_target = option(with_launch_target)
    return with_launch_target


def launch(
    home: "Home", target: LaunchTarget, run: "Run", *, world_size: int, options: tuple[str, ...], as_json: bool
) -> bool:
    """Launch the run elsewhere and print how to follow it; return False if this process is to train it."""
    from assay.launchers.local import launched_here
    from assay.store.commit_log import CommitLog
    from assay.store.launches import process_began_s
    from assay.store.missing_log import reject_missing_log
    from assay.store.objects import open_store
    from assay.store.run_location import reject_copy, reject_links
    from assay.workflows.bookkeeping import writer_of

    if target.dry_run:
        from assay.launchers.slurm.launcher import job_script
        from assay.reporting.terminal.terminal import print_file

        script = job_script(home, run, target.slurm_config(), world_size=world_size, options=options)
        print_file(script)
        return True
    reject_copy(run)
    reject_links(Path(run.run_dir))
    reject_missing_log(run, CommitLog(open_store(run.store_url)))
    launcher = target.launcher(home, options)
    if launcher is None:
        if target.on == "here" and not target.launched:
            launched_here(run, world_size=world_size, requested_s=process_began_s())
        return False
    launched = launcher.start(run, world_size=world_size)
    with writer_of(home, run) as writer:
        writer.put(lambda ledger: ledger.record_launch(launched))
    if as_json:
        click.echo(launched.to_json())
        return True
    click.echo(
        f"run {run.run_id}: {launched.where()}\n  follow: tail -F {launched.log}\n"
        f"          assay runs show {run.run_id}\n  stop:   assay train stop {run.run_id}  (commits first)"
    )
    return True
