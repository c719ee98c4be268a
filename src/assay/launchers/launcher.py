"""The launcher protocol: a launcher starts a run somewhere and returns at once.

All launchers keep one contract (tests/contract/test_launchers.py): the run reaches its last step with the same
weights; a stopped run commits and exits; a restarted run resumes. The launch is recorded in the run's folder, and
anyone with the record can query or stop it. `launchers.launches` has the table of all launchers: a launcher is one
module, imported when a launch of its kind is started or queried.
"""

import fcntl
import math
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import PositiveInt

from assay.base.config import FrozenConfig
from assay.base.errors import ConfigError, NotInstalledError
from assay.elastic.workers import Workers
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.home import Home
from assay.store.known_runs import RUN_FILE

LaunchState = Literal["queued", "running", "ended", "elsewhere"]
"""`ended` does not imply success, which the run's log tells. `elsewhere`: a process on another host, whose state is
unknown here."""


class Launcher(Protocol):
    """Starts runs on some kind of machine."""

    def start(self, run: Run, *, world_size: int) -> Launch:
        """Start the run, or resume it from its last commit."""


class LauncherModule(Protocol):
    """What the module of each launcher defines."""

    def state(self, launch: Launch) -> LaunchState:
        """Return whether the launch is queued, running or ended."""

    def stop(self, launch: Launch) -> None:
        """Ask the launch to commit and exit, without waiting. Does nothing if it has ended."""

    def kill(self, launch: Launch) -> None:
        """Kill the launch at once; its commits stay. Does nothing if it has ended."""


class SchedulerLauncher:
    """Starts runs with the options of a scheduler.

    If the scheduler has a job of the run without a record, its launcher was killed before it wrote the record. That
    job is recorded instead of starting another one.
    """

    def __init__(self, home: Home, config: Any, options: tuple[str, ...] = ()) -> None:
        """`options`: further options of `assay train`, e.g. `--max-restarts 3`."""
        self._home, self._config, self._options = home, config, options

    def start(self, run: Run, *, world_size: int) -> Launch:
        """Start the run, or resume it from its last commit. Raises `ConfigError` if a job trains it."""
        with starting(run):
            return self._start(run, world_size)

    def _start(self, run: Run, world_size: int) -> Launch:
        raise NotImplementedError


@contextmanager
def starting(run: Run) -> Iterator[None]:
    """During the body, which starts and records a launch, hold the run's lock: a second command finds the record."""
    with ExitStack() as opened:
        with suppress(OSError):  # a network file system without locks
            fcntl.flock(opened.enter_context((Path(run.run_dir) / RUN_FILE).open("r+")), fcntl.LOCK_EX)
        yield


class SchedulerModule(LauncherModule, Protocol):
    """What the module of a launcher defines if a scheduler chooses the machines."""

    CONFIG: "type[SchedulerConfig]"
    """Options of a launch; those of the command line have the names of its fields."""
    LAUNCHER: Callable[[Home, Any, tuple[str, ...]], Launcher]
    """Called with the home, a `CONFIG`, and further options of `assay train`."""

    def check(self, config: Any, *, world_size: int) -> Sequence[str]:
        """Raise `ConfigError` for a launch that cannot work, before the run is created; return warnings."""

    def job_text(self, home: Home, run: Run, config: Any, *, world_size: int, options: tuple[str, ...] = ()) -> str:
        """Return what `start` would submit, and submit and write nothing."""

    def check_run(self, home: Home, run: Run, config: Any, *, world_size: int, options: tuple[str, ...] = ()) -> object:
        """Raise `ConfigError` for a run that the scheduler would reject, before the run is created."""

    def pending_reason(self, launch: Launch) -> str:
        """Return, in the scheduler's words, why the launch is queued."""


class RunSize(NamedTuple):
    """How many nodes a run may have."""

    most: int
    fewest: int
    workers: Workers
    workers_per_node: int


class SchedulerConfig(FrozenConfig):
    """Options that all schedulers have."""

    nodes: PositiveInt = 1
    """Number of nodes. Each runs one supervisor; ranks are divided evenly."""

    def size(self, world_size: int, options: Sequence[str] = ()) -> RunSize:
        """Return the size that `--nodes` and `--workers`, if a range is among the options, ask for.

        Raises `ConfigError` if a node would have no rank.
        """
        if world_size < self.nodes:
            raise ConfigError(
                f"--nodes {self.nodes} --workers {world_size}: --workers counts the workers of all nodes, so some "
                f"node would have none. Use --workers {self.nodes} or more, or fewer --nodes."
            )
        ranges = [option.partition("=")[2] for option in options if option.startswith("--workers=")]
        workers = Workers.of(ranges[-1]) if ranges else Workers(world_size)
        per_node, least = math.ceil(world_size / self.nodes), workers.least or world_size
        return RunSize(math.ceil(world_size / per_node), math.ceil(least / per_node), workers, per_node)


def resume_command(run: Run, *, world_size: int, options: Sequence[str] = (), program: str | None = None) -> list[str]:
    """Return the command that resumes a run. A `--workers=...` among the options replaces `world_size`.

    `program`: by default this installation's.
    """
    workers = [] if any(option.startswith("--workers=") for option in options) else ["--workers", str(world_size)]
    return [program or assay_program(), "train", "--resume", run.run_id, *workers, *options]


def assay_program() -> str:
    """Return the path of this installation's `assay` program."""
    program = Path(sysconfig.get_path("scripts")) / "assay"
    if not program.exists():
        raise NotInstalledError(f"{program}: no such program. Install assay in this environment: pip install assay.")
    return str(program)
