"""Nodes that a cluster's owner drains are given back: who works there is asked to stop, as by SIGTERM.

    scontrol update NodeName=n2 State=DRAIN Reason=memory
        -> the lead sees it -> all commit -> n2's supervisor leaves, the others go on -> the job gives n2 up

Slurm tells a job nothing of a drain: the node takes no other jobs, and is drained when the last that it has is
over, in days perhaps. So the lead asks for the states of its job's nodes, with one call for all, and takes a
node whose supervisor has left out of the job. The first node, where the job's script runs, Slurm keeps for as
long as the job lives.
"""

import os
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from assay.base.errors import ConfigError, TrainingError
from assay.launchers.slurm.launcher import run_slurm

LOOK_S = 10.0
"""From one look at the states of nodes to the next."""
LOOKS_TO_END = 2
"""That a supervisor has to end in, once it was let go: Slurm would kill it, and count that as a failure."""


class JobNodes(NamedTuple):
    """The nodes of this process's job step, as Slurm names them."""

    job: str
    own: int
    """This process's node, among the names."""
    names: tuple[str, ...]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """None outside a job step."""
        try:
            job, own = environment["SLURM_JOB_ID"], int(environment["SLURM_NODEID"])
            names = _names(environment["SLURM_STEP_NODELIST"])
        except (KeyError, ValueError, TrainingError, ConfigError):
            return None
        return cls(job, own, names) if own < len(names) else None


@contextmanager
def watching_drains(
    nodes: JobNodes | None,
    *,
    on_drained: Callable[[frozenset[int]], None] = lambda numbers: None,
    active_nodes: Callable[[], Collection[int]] | None = None,
) -> Iterator[None]:
    """Meanwhile, have this process asked to stop when its node is drained.

    `wanted_back` is told the numbers of all nodes that are; `there`: of those that are still at work, where
    this process leads the others.
    """
    if nodes is None:
        yield
        return
    watch = _DrainWatch(nodes, on_drained, active_nodes)
    watch.start()
    try:
        yield
    finally:
        watch.is_over.set()


class _DrainWatch(threading.Thread):
    """Looks on from a thread: a cluster that does not answer holds nothing up."""

    def __init__(
        self,
        nodes: JobNodes,
        on_drained: Callable[[frozenset[int]], None],
        active_nodes: Callable[[], Collection[int]] | None,
    ) -> None:
        super().__init__(name="watch for drained nodes", daemon=True)
        self._nodes = nodes
        self._on_drained = on_drained
        self._active_nodes = active_nodes
        self._has_requested_stop = False
        self._left = Counter[int]()
        """[drained node]: at how many looks it was not at work."""
        self._released: set[int] = set()
        self.is_over = threading.Event()

    def run(self) -> None:
        """Until it is over, or where nobody can be asked."""
        # It is for the supervisor, who may hold it back for a while.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        while not self.is_over.wait(LOOK_S):
            try:
                self._look(draining(self._nodes.names))
            except ConfigError:
                return
            except TrainingError:
                continue  # the cluster's own trouble; the run has another look at it

    def _look(self, names: Collection[str]) -> None:
        if self.is_over.is_set():  # while the cluster was asked
            return
        numbers = frozenset(number for number, name in enumerate(self._nodes.names) if name in names)
        self._on_drained(numbers)
        if self._nodes.own in numbers:
            self._request_stop()
        if self._active_nodes is None:
            return
        for number in sorted(numbers - set(self._active_nodes()) - self._released - {0}):
            self._left[number] += 1
            if self._left[number] > LOOKS_TO_END:
                self._released.add(number)
                self._release(self._nodes.names[number])

    def _request_stop(self) -> None:
        """Not who has yet to begin, or is done: nobody would take the signal, and the process would die."""
        if not self._has_requested_stop and callable(signal.getsignal(signal.SIGTERM)):
            self._has_requested_stop = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _release(self, name: str) -> None:
        job = self._nodes.job
        try:
            held = _names(run_slurm("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip())
            if name not in held:  # another lead has given it back
                return
            remaining = ",".join(text for text in held if text != name)
            with tempfile.TemporaryDirectory() as folder:  # scontrol leaves scripts where it is called
                run_slurm("scontrol", "update", f"JobId={job}", f"NodeList={remaining}", folder=folder)
        except TrainingError as error:
            print(f"node {name} has left, and stays in job {job}: {error}", file=sys.stderr)
        else:
            print(f"node {name} is drained: it has left, and is no part of job {job} any more", file=sys.stderr)


def draining(names: Sequence[str]) -> set[str]:
    """Those of the nodes that are to be given back."""
    listed = run_slurm("sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N|%T")
    states = (line.partition("|") for line in listed.splitlines())
    return {name.strip() for name, _, state in states if state.startswith("drain")}


def _names(nodes: str) -> tuple[str, ...]:
    """Slurm writes `n[1-3]`."""
    return tuple(run_slurm("scontrol", "show", "hostnames", nodes).split())
