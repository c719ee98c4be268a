"""A real Ray cluster on this machine: `ray start` for each node, in a network namespace that has loopback alone.

All nodes share an address, so that a node is told by its Ray node id. Needs Ray in this environment (`make test-ray`).
"""

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slurm_cluster import wait_until

ADDRESS = "127.0.0.1:6379"
_NEW_NETWORK = 0x40000000
_RAY = (sys.executable, "-c", "from ray.scripts.scripts import main; main()")
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "RAY_ADDRESS": ADDRESS}


def missing_part() -> str | None:
    """What a cluster lacks here."""
    if importlib.util.find_spec("ray") is None:
        return "the package ray is not installed; 'make test-ray' has it"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(loopback_only())
        except OSError as error:
            return f"no network namespace: {error}"
    return None


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Let this thread and the processes that it starts see no network but loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as own:
        if libc.unshare(_NEW_NETWORK):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            libc.setns(own.fileno(), _NEW_NETWORK)


class RayNode(NamedTuple):
    """A node: `ray start`, and what it has started."""

    process: subprocess.Popen[bytes]
    node_id: str

    def processes(self) -> list[int]:
        """Its processes, the first one's first."""
        return _descendants(self.process.pid)

    def raylet(self) -> int:
        """The process that Ray starts workers with."""
        return next(pid for pid in self.processes() if _name(pid) == "raylet")


class RayCluster:
    """Starts and kills nodes; `environment` is what leads Ray's programs to them."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="assay-ray-"))  # short: it holds sockets
        self.environment = {**_QUIET}
        self.nodes: list[RayNode] = []

    def start(self) -> None:
        """The head has no processor, so all runs are on the nodes that are added."""
        self._add(["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={self._folder}"])

    def add_nodes(self, number: int, num_cpus: int = 1) -> list[RayNode]:
        """Return once they are part of the cluster."""
        return [self._add([f"--address={ADDRESS}", f"--num-cpus={num_cpus}"]) for _ in range(number)]

    def _add(self, options: list[str], num_tries: int = 3) -> RayNode:
        """On a busy machine Ray itself gives up now and then, and is started again."""
        log = self._folder / f"node-{time.monotonic_ns()}.log"
        command = [*_RAY, "start", "--block", "--object-store-memory=80000000", *options]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(lambda: process.poll() is not None or "Ray runtime started" in log.read_text(), "a node of Ray")
        if process.poll() is not None:
            assert num_tries > 1, log.read_text()
            return self._add(options, num_tries - 1)
        node = RayNode(process, _node_id(process.pid))
        self.nodes.append(node)
        return node

    def kill(self, node: RayNode) -> None:
        """As when a machine loses its power: raylet, workers, and all that these have started."""
        _kill(node.processes())
        node.process.wait()
        self.nodes.remove(node)

    def drain(self, node: RayNode, seconds: int) -> None:
        """Announce that a node will be taken away, as an autoscaler does."""
        reason = ("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=test")
        limit = f"--deadline-remaining-seconds={seconds}"
        command = [*_RAY, "drain-node", f"--address={ADDRESS}", f"--node-id={node.node_id}", *reason, limit]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, **self.environment})

    def forget_ended(self) -> None:
        """A drained node ends by itself."""
        self.nodes = [node for node in self.nodes if node.process.poll() is None]

    def logs(self) -> list[Path]:
        """What Ray wrote down."""
        return [file for file in self._folder.glob("session_*/logs/**/*") if file.is_file()]

    def stop(self) -> None:
        """Kill all nodes, the head last."""
        for node in reversed([*self.nodes]):
            self.kill(node)
        shutil.rmtree(self._folder, ignore_errors=True)


def _kill(pids: list[int]) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none sees another's end
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _node_id(pid: int) -> str:
    """Ray tells each node's processes its id on their command lines."""
    for child in _descendants(pid):
        if _name(child) == "raylet":
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
            return next(word.partition("=")[2] for word in words if word.startswith("--node_id="))
    raise AssertionError("no raylet")
