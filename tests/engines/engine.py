"""What an engine can do to a run, and which of it each engine knows."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.launchers.launcher import Launcher
from assay.launchers.launches import state_of
from assay.records.launch import Launch, LaunchKind
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from slurm_cluster import wait_until as wait_shortly

KINDS: tuple[LaunchKind, ...] = ("background", "slurm", "kubernetes", "ray")
NO = "no: "
EVENTS: Mapping[str, tuple[str, str, str, str]] = {
    "it is stopped, and started again": (
        "SIGTERM to its process",
        "`scancel`",
        "its Job is deleted",
        "a file that its driver looks for",
    ),
    "a follower is lost": (
        f"{NO}it has one node",
        "all processes of its node are killed",
        "its node dies without a word",
        "its machine dies",
    ),
    "the leader is lost": (
        "its process is killed; start it again",
        "all processes of its node are killed",
        "its node dies without a word",
        "its machine dies",
    ),
    "it grows": (
        f"{NO}stop it, and start it with more `--workers`",
        "`assay train join --on slurm`",
        "`assay train resize`, or quota that is free",
        "a machine is added",
    ),
    "it shrinks": (
        f"{NO}stop it, and start it with fewer `--workers`",
        "`scancel` of the job that lent a node",
        "`assay train resize`, or quota that is withdrawn",
        f"{NO}Ray takes a machine away by draining it",
    ),
    "a node is drained": (
        f"{NO}nobody drains a process; stop it",
        "`scontrol update NodeName=N State=DRAIN`",
        "an eviction, as `kubectl drain` asks for",
        "`ray drain-node`, or the autoscaler",
    ),
    "it is suspended, and resumed": (
        f"{NO}nothing else waits for its processors; stop it",
        "a job of higher priority preempts it; it is requeued",
        "`spec.suspend`, which Kueue sets",
        "all its machines go; it waits until others come",
    ),
    "a second command starts it": ("refused", "refused", "refused", "refused"),
    "a run of its name in another folder is started": (
        f"{NO}both train",
        f"{NO}both train",
        "refused",
        "refused",
    ),
}
"""What happens to a run -> what it is on each engine of `KINDS`, or why there is no such thing."""


def engines_with(event: str) -> list[LaunchKind]:
    """The engines on which it can happen."""
    return [kind for kind, text in zip(KINDS, EVENTS[event], strict=True) if not text.startswith(NO)]


def events_table() -> str:
    """The table of the docs."""
    rows = [("what happens to a run", *KINDS), ("---",) * 5, *((event, *texts) for event, texts in EVENTS.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def wait_until(is_so: Callable[[], object], what: str) -> None:
    """Poll for as long as a busy machine needs."""
    wait_shortly(is_so, what, timeout_s=240)


@dataclass
class StartedRun:
    """A run that an engine trains."""

    run: Run
    launch: Launch

    @property
    def log(self) -> CommitLog:
        return CommitLog(open_store(self.run.store_url))

    def step(self) -> int:
        """That of the last commit."""
        return max((commit.step for commit in self.log.commits()), default=0)

    def attempts(self) -> list[Attempt]:
        return saved_attempts(Path(self.run.run_dir))

    def world_sizes(self) -> list[int]:
        return [attempt.world_size for attempt in self.attempts()]

    def has_committed(self, attempt: int) -> bool:
        """Whether that attempt, or a later one, has."""
        return any(commit.attempt >= attempt for commit in self.log.commits())

    def wait_for_workers(self, number: int) -> None:
        """Wait for a commit of an attempt with so many workers."""

        def has_committed() -> bool:
            sizes = self.world_sizes()
            return sizes[-1:] == [number] and self.has_committed(len(sizes))

        wait_until(has_committed, f"a commit of {number} workers")

    def wait_for_end(self) -> None:
        wait_until(lambda: state_of(self.launch) == "ended", "the run's end")


class Engine(ABC):
    """An engine under test. What it has no notion of, by `EVENTS`, it does not implement."""

    SIZES: tuple[int, ...] = ()
    """Number of nodes with which a run that may change its size begins, and those to which it is brought in turn."""
    RESIZABLE_NODES = 2
    """`--nodes` of such a run."""

    @abstractmethod
    def launcher(self, *, nodes: int = 1, options: tuple[str, ...] = ()) -> Launcher:
        """What starts a run."""

    @abstractmethod
    def park(self, run: Run) -> Launch:
        """Start a launch that waits, if the engine has a queue."""

    @abstractmethod
    def output(self, started: StartedRun) -> str:
        """What the nodes have printed."""

    @abstractmethod
    def lose(self, started: StartedRun, index: int) -> None:
        """End a node without a word."""

    @abstractmethod
    def num_jobs(self, run: Run) -> int:
        """How many jobs of the run the engine has."""

    @abstractmethod
    def listings(self, started: StartedRun) -> str:
        """All that the engine shows to its users."""

    def resize(self, started: StartedRun, number: int) -> None:
        """Give the run so many nodes."""
        raise NotImplementedError

    def drain(self, started: StartedRun, index: int) -> None:
        """Announce that a node will be taken away; return once the run has left it."""
        raise NotImplementedError

    def suspend(self, started: StartedRun) -> None:
        """Take all nodes away; return once the run has left them."""
        raise NotImplementedError

    def resume(self, started: StartedRun) -> None:
        """Give nodes again."""
        raise NotImplementedError

    def assert_ended_well(self, started: StartedRun) -> None:
        """What the engine itself says of a run that is finished."""
        assert state_of(started.launch) == "ended"

    def leader(self, started: StartedRun) -> int:
        """Index of the node that leads."""
        wait_until(lambda: "leads, at" in self.output(started), "a leader")
        return int(re.findall(r"node (\d+) leads, at", self.output(started))[-1])


def command_lines() -> Iterator[tuple[int, str]]:
    """The processes of this machine, with what anybody sees of them."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield int(path.parent.name), path.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(item for word in words for item in family(int(word)))]


def kill_all(pids: list[int]) -> None:
    """Kill processes; those that have ended meanwhile are left alone."""
    for pid in pids:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
