"""Nodes in network namespaces, all of which see the run's folder: one of them loses its link to the others."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.launchers.launcher import resume_command
from assay.records.run import Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from assay.training.audit import audit_run
from network_links import Node, linked_nodes, missing

pytestmark = pytest.mark.timeout(600)
SLOW = [f"{{type: slow, attempt: {attempt}, step: 1, extra_s: 0.3}}" for attempt in (1, 2)]
"""So that there is time for a node to lose its link, and to get it back."""


class LinkedNodes:
    """A supervisor on each node."""

    def __init__(self, run: Run, nodes: list[Node], folder: Path) -> None:
        self.run, self.folder, self._nodes = run, folder, nodes
        self.log = CommitLog(open_store(run.store_url))
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "slow.yaml").write_text(f"faults: [{', '.join(SLOW)}]")

    def start(self, index: int) -> None:
        node = self._nodes[index]
        location = ("--on", "nodes", "--node", str(index), "--workers-per-node", "1", "--address", node.address)
        options = (*location, "--faults", str(self.folder / "slow.yaml"))
        command = resume_command(self.run, world_size=len(self._nodes), options=options)
        # A rank that another test joined in this process has named its own interface.
        variables = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
        with (self.folder / f"node-{index}.log").open("w") as file:
            entered = ["ip", "netns", "exec", node.namespace, *command]
            self.processes.append(subprocess.Popen(entered, stdout=file, stderr=file, env=variables))

    def text(self, index: int) -> str:
        return (self.folder / f"node-{index}.log").read_text()

    def set_link(self, index: int, state: str) -> None:
        """`up`, or `down`: the switch carries nothing from and to the node."""
        switch = self._nodes[index].namespace.rpartition("-")[0] + "-switch"
        subprocess.run(["ip", "-n", switch, "link", "set", f"port{index}", state], check=True)

    def until(self, is_so: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + 200
        while not is_so():
            assert time.monotonic() < deadline_s, "\n".join(map(self.text, range(len(self.processes))))
            time.sleep(0.05)

    def until_attempt_commits(self, attempt: int) -> None:
        self.until(lambda: any(commit.attempt == attempt for commit in self.log.commits()))

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def undisturbed(run_it) -> str:
    """The weights of the run when nothing happens."""
    digest: str = run_it(trainer__epochs=3)[1].finished().weights_digest
    return digest


@pytest.fixture
def three_nodes(requires, undisturbed: str, new_tiny_run, tmp_path: Path) -> Iterator[LinkedNodes]:
    """A run on three nodes, of which the first one leads, that has made a commit."""
    reason = missing()
    requires("netns", reason is None, f"{reason}; Debian's package iproute2, and root in a container that may")
    run = new_tiny_run(trainer__epochs=3, trainer__commit_every=2)
    with linked_nodes(3, "1gbit") as nodes:
        linked = LinkedNodes(run, nodes, tmp_path)
        try:
            linked.start(0)
            linked.until(lambda: Path(run.run_dir, "lead.json").exists())
            linked.start(1)
            linked.start(2)
            linked.until_attempt_commits(1)
            yield linked
        finally:
            linked.stop()


@pytest.mark.slow
def test_a_node_that_loses_its_link_waits_for_the_leader_and_does_not_take_the_run_away(
    three_nodes: LinkedNodes, undisturbed: str
) -> None:
    three_nodes.set_link(2, "down")
    three_nodes.until(lambda: "cannot reach the leader at 10.77.0.1:" in three_nodes.text(2))
    three_nodes.until_attempt_commits(2)
    three_nodes.set_link(2, "up")
    assert [process.wait(200) for process in three_nodes.processes] == [0, 0, 0]
    assert three_nodes.text(2).count("cannot reach the leader") == 1, "it is said once"
    assert [index for index in range(3) if " leads, at " in three_nodes.text(index)] == [0]
    first, second, *_ = saved_attempts(Path(three_nodes.run.run_dir))
    assert (first.world_size, second.world_size) == (3, 2)
    assert first.reason.startswith("node 2 was lost with rank 2")
    finished = three_nodes.log.finished()
    assert finished is not None and finished.weights_digest == undisturbed
    assert audit_run(three_nodes.run, three_nodes.log).verdict == "pass"


@pytest.mark.soak
def test_the_leader_loses_its_link_and_dies_and_the_others_go_on(three_nodes: LinkedNodes, undisturbed: str) -> None:
    three_nodes.set_link(0, "down")
    for index in (1, 2):
        three_nodes.until(lambda index=index: "cannot reach the leader at 10.77.0.1:" in three_nodes.text(index))
    three_nodes.processes[0].kill()
    assert [process.wait(300) for process in three_nodes.processes] == [-9, 0, 0]
    finished = three_nodes.log.finished()
    assert finished is not None and finished.weights_digest == undisturbed
    assert audit_run(three_nodes.run, three_nodes.log).verdict == "pass"
