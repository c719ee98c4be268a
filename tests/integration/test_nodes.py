"""Two supervisors on one machine, as on two nodes: this process leads, a process of its own follows."""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.launch.places.launcher import resume_command
from assay.launch.ranks.faults import FaultPlan, Hang
from assay.launch.ranks.nodes import NodeGroup
from assay.launch.ranks.supervisor import RestartPolicy, Supervisor
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from assay.training.audit import audit_run


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def two_nodes(run: Run, port: int) -> NodeGroup:
    return NodeGroup(run, num_nodes=2, host="127.0.0.1", port=port, ranks_per_node=1, clock=SystemClock())


@pytest.fixture
def start_follower(tmp_path: Path) -> Iterator[Callable[[Run, int], subprocess.Popen]]:
    """Start `assay train --on allocation` as node 1 of 2; its words are in `follower.log`."""
    started: list[subprocess.Popen] = []

    def start(run: Run, port: int, **limits: str) -> subprocess.Popen:
        step = {"NODEID": 1, "NTASKS": 2, "STEP_NUM_NODES": 2, "JOB_ID": 1, "LAUNCH_NODE_IPADDR": "127.0.0.1"}
        variables = {f"SLURM_{name}": str(value) for name, value in step.items()}
        with (tmp_path / "follower.log").open("w") as words:
            process = subprocess.Popen(
                resume_command(run, world_size=2, options=("--on", "allocation")),
                env={**os.environ, **variables, "ASSAY_LINK_PORT": str(port), **limits},
                stdout=words,
                stderr=words,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ranks_of(supervisor: int) -> list[int]:
    """The children of its fork server."""
    return [rank for server in children(supervisor) for rank in children(server)]


class Disturb:
    """Does one thing in each attempt, once it has made a commit; remembers how the attempts ended."""

    def __init__(self, log: CommitLog, disturbances: list[Callable[[], None]]) -> None:
        self.log, self.disturbances, self.ended = log, disturbances, []

    def attempt_began(self, attempt, pids) -> None:
        self.commits_before, self.is_done = len(self.log.commits()), False

    def tick(self, attempt) -> None:
        if not self.is_done and self.disturbances and len(self.log.commits()) > self.commits_before:
            self.disturbances.pop(0)()
            self.is_done = True

    def attempt_ended(self, attempt) -> None:
        self.ended.append(attempt)


@pytest.mark.slow
def test_when_a_rank_and_then_a_node_die_the_run_still_ends_with_the_undisturbed_weights(
    new_tiny_run, run_it, start_follower
) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=4)
    run, port = new_tiny_run(trainer__epochs=4), free_port()
    log = CommitLog(open_store(run.store_url))
    follower = start_follower(run, port)
    disturb = Disturb(
        log, [lambda: os.kill(ranks_of(follower.pid)[0], signal.SIGKILL), lambda: follower.kill()]
    )
    nodes = two_nodes(run, port)

    Supervisor(
        run,
        CommitLog(open_store(run.store_url)),
        policy=RestartPolicy(),
        watchers=[disturb],
        clock=SystemClock(),
        nodes=nodes,
    ).run(2)
    nodes.close()

    killed, lost = (attempt.failure for attempt in disturb.ended[:2])
    assert (killed.failure_kind, killed.rank, killed.text) == ("killed_by_signal", 1, "SIGKILL")
    assert killed.host == disturb.ended[0].hosts[1] and killed.device == disturb.ended[0].devices[1] == "cpu"
    assert (lost.failure_kind, lost.rank) == ("lost_node", 1)
    assert disturb.ended[1].reason.startswith("node 1 was lost with rank 1")
    assert [attempt.world_size for attempt in disturb.ended] == [2, 2, 1]
    assert log.finished().weights_digest == undisturbed.finished().weights_digest
    assert audit_run(run, log).verdict == "pass"


@pytest.mark.slow
def test_a_node_of_another_kind_is_refused_by_name_before_anything_is_begun(
    new_tiny_run, start_follower
) -> None:
    run, port = new_tiny_run(), free_port()
    start_follower(run, port, ATEN_CPU_CAPABILITY="default")
    with pytest.raises(ConfigError, match=r"of several kinds.*; node 1 \(.*\) is .*ATen DEFAULT"):
        two_nodes(run, port)
    assert CommitLog(open_store(run.store_url)).entries() == []


def test_a_follower_whose_lead_is_gone_says_so_and_leaves(new_tiny_run, start_follower, tmp_path: Path) -> None:
    run, port = new_tiny_run(), free_port()
    follower = start_follower(run, port)
    nodes = two_nodes(run, port)
    nodes.lose(1)  # as the end of this process would: the connection ends, without a word
    assert follower.wait(timeout=60) == 1
    words = (tmp_path / "follower.log").read_text()
    assert "node 1: the supervisor of node 0 is gone" in words
    assert "Traceback" not in words


@pytest.mark.slow
def test_a_rank_that_hangs_on_another_node_is_named_with_its_stacks(new_tiny_run, start_follower) -> None:
    run, port = new_tiny_run(), free_port()
    start_follower(run, port)
    hang = Hang(type="hang", rank=1, step=7)
    ended = Disturb(CommitLog(open_store(run.store_url)), [])
    nodes = two_nodes(run, port)

    Supervisor(
        run,
        CommitLog(open_store(run.store_url)),
        policy=RestartPolicy(hang_s=8.0, faults=FaultPlan(faults=(hang,))),
        watchers=[ended],
        clock=SystemClock(),
        nodes=nodes,
    ).run(2)
    nodes.close()

    assert ended.ended[-1].outcome == "succeeded"
    failure = ended.ended[0].failure
    assert ended.ended[0].reason.startswith("rank 1 hung in 'compute' of step 7")
    assert "stopped by a signal" in failure.text
    assert "Thread" in Path(run.run_dir, failure.file).read_text()
