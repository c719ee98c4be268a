"""The options of `--on`, and launching a run elsewhere than in this process."""

import functools
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import click

from assay.cli.parameters import FILE

if TYPE_CHECKING:
    from assay.launchers.launcher import Launcher, SchedulerConfig, SchedulerModule
    from assay.records.launch import LaunchKind
    from assay.records.run import Run
    from assay.store.home import Home


def print_warning(text: str) -> None:
    """Print a warning in yellow on stderr."""
    click.secho(text, err=True, fg="yellow")


_SEVERAL_MACHINES = {
    "nodes": click.option("--nodes", type=int, help="Number of nodes, which share --workers evenly.  [1]"),
    "gpus_per_node": click.option("--gpus-per-node", type=int, help="GPUs of each node, one a worker.  [0]"),
    "grace_s": click.option(
        "--grace",
        "grace_s",
        type=int,
        help="Seconds to commit and stop: before Slurm's time limit, or after a pod's SIGTERM.  [120]",
    ),
    "dry_run": click.option("--dry-run", is_flag=True, help="Print the scheduler's job; submit and write nothing."),
    "create_only": click.option(
        "--create-only",
        is_flag=True,
        help="kubernetes: save the run and print its job, for kubectl; start nothing.",
    ),
}
_SLURM = {
    "partition": click.option("--partition", help="Partition of the job; by default the cluster's default."),
    "time": click.option("--time", help="Time limit, e.g. 12:00:00; a longer run continues in the requeued job."),
    "requeue": click.option(
        "--requeue/--no-requeue",
        default=None,
        help="Requeue the job after a preemption, a time limit or a node failure.  [requeue]",
    ),
    "sbatch": click.option(
        "--sbatch",
        multiple=True,
        metavar="OPTION",
        help="Additional option of sbatch, e.g. --sbatch=--gpus-per-node=8. May be repeated.",
    ),
}
_RAY = {
    "ray_address": click.option(
        "--ray-address",
        metavar="HOST:PORT",
        help="Address of the cluster.  [RAY_ADDRESS, else the one of this machine]",
    ),
    "resource": click.option(
        "--resource",
        multiple=True,
        metavar="NAME=AMOUNT",
        help="Further resource that each node needs, as 'ray start --resources' set it. May be repeated.",
    ),
}
_KUBERNETES = {
    "image": click.option("--image", help="Container image that has assay. Required."),
    "claim": click.option(
        "--claim",
        metavar="NAME:/PATH",
        help="PersistentVolumeClaim with the runs and the data, and where it is mounted. Required.",
    ),
    "namespace": click.option("--namespace", help="Namespace; by default that of the kubeconfig's context."),
    "context": click.option("--context", help="Context of the kubeconfig; by default the current one."),
    "queue": click.option("--queue", help="Kueue's LocalQueue that admits the Job."),
    "service_account": click.option(
        "--service-account", help="Service account of the pods, with which the run grows and shrinks its Job."
    ),
    "secret": click.option(
        "--secret", multiple=True, help="Secret whose keys become environment variables. May be repeated."
    ),
    "cpu": click.option("--cpu", type=float, help="Processors of a pod.  [threads_per_rank x workers of a node]"),
    "memory": click.option("--memory", help="Memory of a pod, e.g. 64Gi; by default no limit."),
    "patch": click.option("--patch", type=FILE, help="YAML that is merged into the Job, e.g. a nodeSelector."),
    "as_": click.option(
        "--as", "as_", type=click.Choice(["job", "trainjob"]), help="What --create-only and --dry-run print.  [job]"
    ),
}
_NODE = {
    "node": click.option("--node", type=click.IntRange(min=0), help="Index of this node: 0, 1, 2 and so on."),
    "address": click.option("--address", metavar="HOST", help="Where other nodes reach this one.  [found out]"),
    "leader": click.option(
        "--lead", "leader", metavar="HOST[:PORT]", help="Where a leader may be before the run's folder names one."
    ),
    "workers_per_node": click.option(
        "--workers-per-node", type=click.IntRange(min=1), help="Maximum number of ranks of a node."
    ),
    "wait_for_nodes_s": click.option(
        "--wait-for-nodes",
        "wait_for_nodes_s",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="How long to wait while less than the minimum of --workers fits; then leave with 75.  [for ever]",
    ),
    "log_file": click.option("--log-file", type=click.Path(path_type=Path), help="File to append all output to, too."),
}
SCHEDULER_OPTIONS: "Mapping[LaunchKind, tuple[str, ...]]" = {
    "slurm": ("nodes", "grace_s", *_SLURM),
    "kubernetes": ("nodes", "gpus_per_node", "grace_s", *_KUBERNETES),
    "ray": ("nodes", "gpus_per_node", *_RAY),
}
"""Scheduler -> its options, which are the fields of its `CONFIG`."""
OPTION_SECTIONS = {
    "Several machines": tuple(_SEVERAL_MACHINES),
    "--on slurm": tuple(_SLURM),
    "--on kubernetes": tuple(_KUBERNETES),
    "--on ray": tuple(_RAY),
    "--on nodes": tuple(_NODE),
}
"""Headings of help -> options of `--on`."""
TARGETS = ("here", "background", *SCHEDULER_OPTIONS, "nodes")


class NodeTarget(NamedTuple):
    """The options of `--on nodes`."""

    node: int
    workers_per_node: int
    address: str | None = None
    leader: str | None = None
    wait_for_nodes_s: float = math.inf
    log_file: Path | None = None


@dataclass(frozen=True)
class LaunchTarget:
    """The values of `--on` and the options that belong to it."""

    on: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the scheduler that were set, by their names in its `CONFIG`."""
    dry_run: bool = False
    create_only: bool = False
    launched: bool = False
    """Whether the process that started this one has recorded the launch."""
    node: NodeTarget | None = None
    """Set for `--on nodes`."""

    def check(self, world_size: int) -> None:
        """Raise `ConfigError` for options that cannot work, before a run is created."""
        if self.is_scheduled() and not self.is_printed():
            for note in self.scheduler().check(self.config(), world_size=world_size):
                print_warning(f"warning: {note}")

    def check_several_runs(self, starter: str, *, at_once: int = 1) -> None:
        """Raise an error if `starter`, which starts several runs, cannot start them with these options."""
        if self.on == "here" and at_once > 1:
            raise click.UsageError("--runs-at-once: this process trains one run at a time. Add '--on background'.")
        wrong = "--dry-run" if self.dry_run else "--create-only" if self.create_only else f"--on {self.on}"
        if self.is_printed() or self.node is not None:
            targets = ", ".join(name for name in TARGETS if name != "nodes")
            raise click.UsageError(f"{wrong} applies to a single run; {starter} supports --on {targets}.")

    def is_scheduled(self) -> bool:
        """Return whether a scheduler starts the run, and chooses its machines."""
        return self.on in SCHEDULER_OPTIONS

    def is_printed(self) -> bool:
        """Return whether the job is printed instead of submitted."""
        return self.dry_run or self.create_only

    def is_detached(self) -> bool:
        """Return whether the run trains elsewhere than in this process."""
        return self.on == "background" or self.is_scheduled()

    def num_nodes(self, world_size: int) -> int:
        """Return the number of nodes that `world_size` ranks take."""
        if self.node is not None:
            return -(-world_size // self.node.workers_per_node)
        return self.config().nodes if self.is_scheduled() else 1

    def host(self) -> str | None:
        """Return the host that trains; None if a scheduler chooses it."""
        return None if self.is_scheduled() else socket.gethostname()

    def scheduler(self) -> "SchedulerModule":
        from assay.launchers.launches import scheduler

        return scheduler(cast("LaunchKind", self.on))

    def config(self) -> "SchedulerConfig":
        """Return the validated options of the scheduler."""
        from assay.base.config import validated_options

        return validated_options(self.scheduler().CONFIG, self.options)

    def launcher(self, home: "Home", options: tuple[str, ...]) -> "Launcher | None":
        """Return the launcher of the run; None if this process trains it."""
        from assay.launchers.local import BackgroundLauncher

        if self.is_scheduled():
            return self.scheduler().LAUNCHER(home, self.config(), options)
        return BackgroundLauncher(home, options) if self.on == "background" else None


runs_at_once_option = click.option(
    "--runs-at-once",
    type=click.IntRange(min=1),
    default=1,
    help="Number of runs queued or training at the same time; more than one needs '--on background' or '--on slurm'.",
)
_OPTIONS = (
    click.option(
        "--on",
        type=click.Choice(TARGETS),
        metavar="TARGET",
        default="here",
        help=f"Where: {', '.join(TARGETS[:-1])} or {TARGETS[-1]}.",
    ),
    *_SEVERAL_MACHINES.values(),
    *_SLURM.values(),
    *_KUBERNETES.values(),
    *_RAY.values(),
    *_NODE.values(),
    click.option("--launched", is_flag=True, hidden=True, help="The launch is recorded already."),
)


def launch_target_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `--on` to a command, which gets them as one argument, `target`."""
    names = dict.fromkeys(name for options in SCHEDULER_OPTIONS.values() for name in options)

    @functools.wraps(command)
    def with_launch_target(on: str, dry_run: bool, create_only: bool, launched: bool, **others: Any) -> None:
        node = _node_target(on, {name: value for name in _NODE if (value := others.pop(name)) is not None})
        values = {name: value for name in names if (value := others.pop(name)) not in (None, ())}
        wrong = next((name for name in values if name not in SCHEDULER_OPTIONS.get(cast("LaunchKind", on), ())), None)
        if wrong is not None:
            _reject_option(wrong, [kind for kind, options in SCHEDULER_OPTIONS.items() if wrong in options])
        if dry_run and on not in SCHEDULER_OPTIONS:
            _reject_option("dry_run", list(SCHEDULER_OPTIONS))
        if create_only and on != "kubernetes":
            _reject_option("create_only", ["kubernetes"])
        command(target=LaunchTarget(on, values, dry_run, create_only, launched, node), **others)

    for option in reversed(_OPTIONS):
        with_launch_target = option(with_launch_target)
    return with_launch_target


def _node_target(on: str, values: dict[str, Any]) -> NodeTarget | None:
    if on != "nodes":
        if values:
            _reject_option(next(iter(values)), ["nodes"])
        return None
    if not {"node", "workers_per_node"} <= values.keys():
        raise click.UsageError("--on nodes needs --node (this node's index) and --workers-per-node.")
    return NodeTarget(**values)


def _reject_option(name: str, kinds: Sequence[str]) -> NoReturn:
    from assay.base.config import option_name

    raise click.UsageError(f"{option_name(name)} needs {' or '.join(f'--on {kind}' for kind in kinds)}.")


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

    if target.is_printed():
        from assay.reporting.terminal.terminal import print_file

        job = target.scheduler().job_text(home, run, target.config(), world_size=world_size, options=options)
        print_file(job)
        return True
    reject_copy(run)
    reject_links(Path(run.run_dir))
    reject_missing_log(run, CommitLog(open_store(run.store_url)))
    launcher = target.launcher(home, options)
    if launcher is None:
        if target.on == "here" and not target.launched:
            launched_here(run, world_size=world_size, requested_s=process_began_s(), options=options)
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
