"""Releases nodes that an administrator drains: their supervisors are asked to stop, as by SIGTERM.

    scontrol update NodeName=n2 State=DRAIN Reason=memory
        -> the leader sees it -> all commit -> n2's supervisor exits, the others continue -> the job releases n2

Slurm does not notify a job of a drain: the node accepts no new jobs and is drained when its last job ends, perhaps
days later. So the leader polls the states of its job's nodes, with one call for all, and removes a node from the job
once its supervisor has exited. Slurm keeps the first node, which runs the job script, for the whole life of the job.
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
from assay.launchers.polling import polling
from assay.launchers.slurm.launcher import run_slurm

LOOK_S = 10.0
"""Seconds between polls of the node states."""
LOOKS_TO_END = 2
"""Polls that a dismissed supervisor gets to exit. Otherwise Slurm would kill it and report a failure."""


class JobNodes(NamedTuple):
    """The nodes of this process's job step, as Slurm names them."""

    job: str
    own: int
    """Index of this process's node in `names`."""
    names: tuple[str, ...]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """Return None outside a job step."""
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
    """Poll for drained nodes during the body, and send this process SIGTERM if its own node is drained.

    `on_drained` is called with the numbers of all drained nodes. `active_nodes` returns the nodes whose supervisors
    still run; only the leader passes it.
    """
    if nodes is None:
        yield
        return
    watch = _DrainWatch(nodes, on_drained, active_nodes)
    with polling(watch.look, every_s=LOOK_S, name="watch for drained nodes"):
        yield


class _DrainWatch:
    """What the polls of a run have found so far."""

    def __init__(
        self,
        nodes: JobNodes,
        on_drained: Callable[[frozenset[int]], None],
        active_nodes: Callable[[], Collection[int]] | None,
    ) -> None:
        self._nodes, self._on_drained, self._active_nodes = nodes, on_drained, active_nodes
        self._has_requested_stop = False
        self._left = Counter[int]()
        """Number of polls at which a drained node was no longer active."""
        self._released: set[int] = set()

    def look(self, is_over: threading.Event) -> None:
        """Poll the nodes' states, and act on them unless the run has ended during the poll."""
        names = draining(self._nodes.names)
        if is_over.is_set():
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
        """Send SIGTERM once, but only while a handler is installed: without one it would kill the process."""
        if not self._has_requested_stop and callable(signal.getsignal(signal.SIGTERM)):
            self._has_requested_stop = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _release(self, name: str) -> None:
        job = self._nodes.job
        try:
            held = _names(run_slurm("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip())
            if name not in held:  # an earlier leader has released it
                return
            remaining = ",".join(text for text in held if text != name)
            with tempfile.TemporaryDirectory() as folder:  # scontrol writes resize scripts to its working directory
                run_slurm("scontrol", "update", f"JobId={job}", f"NodeList={remaining}", folder=folder)
        except TrainingError as error:
            print(f"node {name} has left the run but is still part of job {job}: {error}", file=sys.stderr)
        else:
            print(f"node {name} is being drained: it has left the run and was removed from job {job}", file=sys.stderr)


def draining(names: Sequence[str]) -> set[str]:
    """Return the names of the nodes that are draining or drained."""
    listed = run_slurm("sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N|%T")
    states = (line.partition("|") for line in listed.splitlines())
    return {name.strip() for name, _, state in states if state.startswith("drain")}


def _names(nodes: str) -> tuple[str, ...]:
    """Expand a Slurm host list such as `n[1-3]`."""
    return tuple(run_slurm("scontrol", "show", "hostnames", nodes).split())
