"""Where `assay train` trains: the options of `--on`, and what starts a run elsewhere than in this terminal."""

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


def warned(text: str) -> None:
    """Say it in yellow, beside what a command prints."""
    click.secho(text, err=True, fg="yellow")


PLACES = ("here", "background", "slurm", "allocation")


@dataclass(frozen=True)
class PlaceOptions:
    """The choices that stand under `--on`."""

    on: str
    slurm: dict[str, Any]
    """Those of Slurm that were given, by their name in `SlurmConfig`."""
    dry_run: bool
    launched: bool = False
    """Whether who started this process has put the launch on record."""
    workers_per_node: int | None = None
    """Ranks of a node of an allocation, at most; None: they are shared by the nodes that are there."""

    def check(self, world_size: int) -> None:
        """Raises `ConfigError` about what cannot work there; before a run is made."""
        if self.on == "slurm":
            self.slurm_config().check_world_size(world_size)
        elif self.on == "allocation":
            from assay.launchers.slurm.allocation import Allocation

            Allocation.from_environment(os.environ)

    def num_nodes(self) -> int:
        """That the run begins with."""
        if self.on == "allocation":
            from assay.launchers.slurm.allocation import Allocation

            return Allocation.from_environment(os.environ).num_nodes
        return self.slurm_config().nodes if self.on == "slurm" else 1

    def host(self) -> str | None:
        """The machine that trains; None where Slurm chooses one."""
        return None if self.on == "slurm" else socket.gethostname()

    def slurm_config(self) -> "SlurmConfig":
        """Checked."""
        from assay.base.config import LoadedConfig, validated
        from assay.launchers.slurm.launcher import SlurmConfig

        return validated(SlurmConfig, LoadedConfig(self.slurm, dict.fromkeys(self.slurm, "command line")))

    def launcher(self, home: "Home", options: tuple[str, ...]) -> "Launcher | None":
        """Who starts the run elsewhere; None where this process trains itself."""
        from assay.launchers.local import BackgroundLauncher
        from assay.launchers.slurm.launcher import SlurmLauncher

        if self.on == "slurm":
            return SlurmLauncher(home, self.slurm_config(), options)
        return BackgroundLauncher(home, options) if self.on == "background" else None


_OPTIONS = (
    click.option(
        "--on",
        type=click.Choice(PLACES),
        metavar="PLACE",
        default="here",
        show_default=True,
        help="'here'; 'background': on this machine, without this terminal; 'slurm': submit a job; "
        "'allocation': in a job, one supervisor per task of srun.",
    ),
    click.option("--nodes", type=int, help="slurm: nodes of the job; --workers are shared out evenly.  [1]"),
    click.option("--partition", help="slurm: where the job queues; by default the cluster's choice."),
    click.option("--time", help="slurm: time limit, e.g. 12:00:00. A longer run goes on in the requeued job."),
    click.option(
        "--grace", "grace_s", type=int, help="slurm: seconds before the limit to commit and leave.  [120]"
    ),
    click.option(
        "--requeue/--no-requeue",
        default=None,
        help="slurm: go on by itself after a preemption, a time limit or a node's death.  [requeue]",
    ),
    click.option(
        "--sbatch",
        multiple=True,
        metavar="OPTION",
        help="slurm: one more option of sbatch, e.g. --sbatch=--gpus-per-node=8. May be repeated.",
    ),
    click.option(
        "--workers-per-node",
        type=click.IntRange(min=1),
        help="allocation: ranks of a node, at most, so that nodes that come find work; by default --workers "
        "are shared by those that are there.",
    ),
    click.option("--launched", is_flag=True, hidden=True, help="The launch is on record already."),
    click.option("--dry-run", is_flag=True, help="slurm: print the job's script; submit and write nothing."),
)
OF_SLURM = ("nodes", "partition", "time", "grace_s", "requeue", "sbatch")


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options about where; it gets them as one argument, `place`."""

    @functools.wraps(command)
    def with_place(on: str, dry_run: bool, launched: bool, workers_per_node: int | None, **others: Any) -> None:
        given = {name: others.pop(name) for name in OF_SLURM}
        slurm = {name: value for name, value in given.items() if value not in (None, ())}
        if on != "slurm" and (slurm or dry_run):
            wrong = next(iter(slurm), "dry_run").removesuffix("_s").replace("_", "-")
            raise click.UsageError(f"--{wrong} is Slurm's: add '--on slurm'.")
        if on != "allocation" and workers_per_node is not None:
            raise click.UsageError("--workers-per-node is an allocation's: add '--on allocation'.")
        command(place=PlaceOptions(on, slurm, dry_run, launched, workers_per_node), **others)

    for option in reversed(_OPTIONS):
        with_place = option(with_place)
    return with_place


def launch(
    home: "Home", place: PlaceOptions, run: "Run", *, world_size: int, options: tuple[str, ...], as_json: bool
) -> bool:
    """Start the run elsewhere and say how to follow it; False where this process is to train it."""
    from assay.launchers.local import launched_here
    from assay.store.commit_log import CommitLog
    from assay.store.launches import process_began_s
    from assay.store.missing_log import refuse_missing_log
    from assay.store.objects import open_store
    from assay.store.place import refuse_copy, refuse_links
    from assay.workflows.bookkeeping import writer_of

    if place.dry_run:
        from assay.launchers.slurm.launcher import job_script
        from assay.reporting.terminal.terminal import print_file

        script = job_script(home, run, place.slurm_config(), world_size=world_size, options=options)
        print_file(script)
        return True
    refuse_copy(run)
    refuse_links(Path(run.run_dir))
    refuse_missing_log(run, CommitLog(open_store(run.store_url)))
    launcher = place.launcher(home, options)
    if launcher is None:
        if place.on == "here" and not place.launched:
            launched_here(run, world_size=world_size, asked_s=process_began_s())
        return False
    launched = launcher.start(run, world_size=world_size)
    with writer_of(home, run) as writer:
        writer.put(lambda ledger: ledger.record_launch(launched))
    if as_json:
        click.echo(launched.to_json())
        return True
    click.echo(
        f"run {run.run_id}: {launched.where()}\n  follow: tail -F {launched.log}\n"
        f"          assay show {run.run_id}\n  stop:   assay stop {run.run_id}  (commits first)"
    )
    return True
