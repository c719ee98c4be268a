"""Nodes of a cluster on one machine: network namespaces, each behind a link of a stated rate.

    node 0: eth0 --- rate ---+
    node 1: eth0 --- rate ---+--- switch (a bridge in a namespace of its own)
    node 2: eth0 --- rate ---+

Each link is limited both ways by a token bucket (tbf), and delays what it carries if it shall (netem, which
not every kernel has). TCP is told to fill it steadily (Reno): BBR, some machines' default, lets a link idle
now and then to measure it, and an exchange in rounds takes 5 to 15% longer; and not to begin slowly after
lanes have computed, which takes up to a quarter longer, now and then. A process that enters a node
finds the node's name as its machine's. Nothing of the machine's own network is touched; it takes root, `ip`
and `tc`.
"""

import ctypes
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

INTERFACE = "eth0"
"""In every node."""
NETWORK, NAMES = 0x40000000, 0x04000000
"""CLONE_NEWNET of setns(2), CLONE_NEWUTS of unshare(2)."""
CONTROL = "cd /proc/sys/net/ipv4 && echo reno > tcp_congestion_control && echo 0 > tcp_slow_start_after_idle"
BURST_KB = 32
QUEUE_MS = 400
QUEUED_PACKETS = 100_000
"""That a link may delay at once."""


_numbers = itertools.count()
"""Of the networks that this process makes."""


class Node(NamedTuple):
    """A namespace, and its address as the others reach it."""

    namespace: str
    address: str

    def enter(self) -> None:
        """Move this process there, for good; its machine has the node's name from now on."""
        system = ctypes.CDLL(None, use_errno=True)  # os.setns and os.unshare are of Python 3.12
        with Path("/run/netns", self.namespace).open() as location:
            if system.setns(location.fileno(), NETWORK) or system.unshare(NAMES):
                raise OSError(ctypes.get_errno(), f"this process cannot enter {self.namespace}")
        socket.sethostname(self.namespace)

    def sent_bytes(self) -> int:
        """What has left it so far, with the headers of packets and the answers to others'."""
        return self._counted_bytes("tx")

    def received_bytes(self) -> int:
        """What has reached it so far, likewise."""
        return self._counted_bytes("rx")

    def _counted_bytes(self, direction: str) -> int:
        shown = _run("ip", "-n", self.namespace, "-s", "-j", "link", "show", INTERFACE)
        counted: int = json.loads(shown)[0]["stats64"][direction]["bytes"]
        return counted


def missing() -> str | None:
    """Why there can be no such nodes here; None if there can."""
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"no program '{program}' (Debian: iproute2)"
    name = f"assay-probe-{os.getpid()}"
    created = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if created.returncode:
        return f"no network namespaces ({created.stderr.strip()})"
    _run("ip", "netns", "del", name)
    return None


def require_namespaces() -> None:
    """Exit with the reason if there can be no such nodes here."""
    if (reason := missing()) is not None:
        raise SystemExit(f"{reason}; run this as root where namespaces can be made")


@contextmanager
def linked_nodes(num_nodes: int, rate: str, delay: str = "", *, others: Sequence[str] = ()) -> Iterator[list[Node]]:
    """So many nodes, whose links carry `rate` (as tc has it: 100mbit) each way, `delay` (5ms) late; behind them
    nodes with links of `others`."""
    name = f"assay-{os.getpid()}-{next(_numbers)}"
    rates = (*[rate] * num_nodes, *others)
    switch, nodes = f"{name}-switch", [Node(f"{name}-{i}", f"10.77.0.{i + 1}") for i in range(len(rates))]
    created: list[str] = []
    try:
        for namespace in (switch, *(node.namespace for node in nodes)):
            _run("ip", "netns", "add", namespace)
            created.append(namespace)
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for i, (node, node_rate) in enumerate(zip(nodes, rates, strict=True)):
            _link(node, switch, f"port{i}", node_rate, delay)
        yield nodes
    finally:
        for namespace in created:
            _run("ip", "netns", "del", namespace)


def _link(node: Node, switch: str, port: str, rate: str, delay: str) -> None:
    _run("ip", "netns", "exec", node.namespace, "sh", "-c", CONTROL)
    peer = ("peer", "name", port, "netns", switch)
    _run("ip", "-n", node.namespace, "link", "add", INTERFACE, "type", "veth", *peer)
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge")
    _run("ip", "-n", node.namespace, "address", "add", f"{node.address}/24", "dev", INTERFACE)
    for namespace, end in ((node.namespace, INTERFACE), (switch, port)):
        _run("ip", "-n", namespace, "link", "set", end, "up")
        bucket = ("rate", rate, "burst", f"{BURST_KB}kb", "latency", f"{QUEUE_MS}ms")
        _run("tc", "-n", namespace, "qdisc", "add", "dev", end, "root", "handle", "1:", "tbf", *bucket)
    if delay:
        late = ("netem", "delay", delay, "limit", str(QUEUED_PACKETS))
        _run("tc", "-n", node.namespace, "qdisc", "add", "dev", INTERFACE, "parent", "1:1", *late)


def forked_at(nodes: Sequence[Node], program: Callable[[int], None]) -> None:
    """Have a fork of this process run `program` with its number on each node; raises once one fails.

    A node that is named several times has as many of them.
    """
    children: list[int] = []
    for number, node in enumerate(nodes):
        if not (child := os.fork()):
            try:
                os.environ.pop("GLOO_SOCKET_IFNAME", None)  # on a node it is found anew
                node.enter()
                program(number)
            except BaseException as error:
                print(f"node {number}: {error!r}", flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    while children:
        for child in list(children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                children.remove(child)
            if status:
                _end(children)
                raise RuntimeError("a node failed")
        time.sleep(0.02)


def _end(children: Sequence[int]) -> None:
    """Do not leave those that wait for one that failed."""
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        hint = " (this kernel has no netem: leave the delay out)" if "netem" in command else ""
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}{hint}")
    return done.stdout
