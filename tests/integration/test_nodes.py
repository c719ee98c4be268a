"""Supervisors on one machine, as on several nodes: each is a process of its own, or this process leads."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError, FencedError
from assay.elastic.faults import FaultPlan, SignalFault, Slow
from assay.elastic.nodes.group import NodeGroup
from assay.elastic.nodes.server import leader_address, read_leader
from assay.elastic.supervisor import RestartPolicy, Supervisor, ThisMachine
from assay.launchers.launcher import resume_command
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run
from assay.workflows.bookkeeping import writer_of
from assay.workflows.train import train_run


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def led_nodes(run: Run, port: int) -> NodeGroup:
    """This process leads, and begins once all ranks fit."""
    log = CommitLog(open_store(run.store_url))
    return NodeGroup(run, log, host="127.0.0.1", port=port, ranks_per_node=1, clock=SystemClock(), quiet_s=240.0)


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Start a command whose words go to a file of the test's folder; killed at the end."""
    started: list[subprocess.Popen] = []

    def start(command: Sequence[str], words: str, **variables: str) -> subprocess.Popen:
        with (tmp_path / words).open("a") as file:
            process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=file, stderr=file)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def start_follower(start_process) -> Callable[..., subprocess.Popen]:
    """Start `assay train --on nodes` as node 1 of 2, or another; its words are in `node-1.log`."""

    def start(
        run: Run, port: int, node: int = 1, num_nodes: int = 2, options: Sequence[str] = (), **limits: str
    ) -> subprocess.Popen:
        location = ("--on", "nodes", "--node", str(node), "--workers-per-node", "1", "--address", "127.0.0.1")
        leader = ("--lead", f"127.0.0.1:{port}")
        command = resume_command(run, world_size=num_nodes, options=(*location, *leader, *options))
        return start_process(command, f"node-{node}.log", **limits)

    return start


@pytest.fixture
def lend(start_process) -> Callable[[Run], subprocess.Popen]:
    """Start `assay train join`."""
    return lambda run: start_process([sys.executable, "-m", "assay", "train", "join", run.run_id], "lent.log")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ranks_of(supervisor: int) -> list[int]:
    """The children of its fork server."""
    return [rank for server in children(supervisor) for rank in children(server)]


def last_step(log: CommitLog) -> int:
    """The last commit's; how many are kept says nothing."""
    commits = log.commits()
    return commits[-1].step if commits else 0


def in_order(run: Run, indices: Sequence[int], start: Callable[[int], subprocess.Popen]) -> list[subprocess.Popen]:
    """Start nodes, of which the first one leads."""
    first, *others = indices
    nodes = [start(first)]
    until(lambda: read_leader(Path(run.run_dir)) is not None)
    return [*nodes, *map(start, others)]


class Disturb:
    """Does one thing in each attempt, once it has made a commit; remembers how the attempts ended."""

    def __init__(self, log: CommitLog, disturbances: list[Callable[[], None]]) -> None:
        self.log, self.disturbances, self.ended = log, disturbances, []

    def attempt_began(self, attempt, pids) -> None:
        self.step_before, self.is_done = last_step(self.log), False

    def tick(self, attempt) -> None:
        if not self.is_done and self.disturbances and last_step(self.log) > self.step_before:
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
    nodes = led_nodes(run, port)
    follower = start_follower(run, port)
    disturb = Disturb(log, [lambda: os.kill(ranks_of(follower.pid)[0], signal.SIGKILL), lambda: follower.kill()])

    Supervisor(
        run,
        CommitLog(open_store(run.store_url)),
        policy=RestartPolicy(),
        observers=[disturb],
        clock=SystemClock(),
        nodes=nodes,
    ).run(2)
    nodes.end(0)
    nodes.close()

    killed, lost = (attempt.failure for attempt in disturb.ended[:2])
    assert (killed.failure_kind, killed.rank, killed.text) == ("killed_by_signal", 1, "SIGKILL")
    assert killed.host == disturb.ended[0].hosts[1] and killed.device == disturb.ended[0].devices[1] == "cpu"
    assert (lost.failure_kind, lost.rank) == ("lost_node", 1)
    assert disturb.ended[1].reason.startswith("node 1 was lost with rank 1")
    assert [attempt.world_size for attempt in disturb.ended] == [2, 2, 1]
    assert log.finished().weights_digest == undisturbed.finished().weights_digest
    assert audit_run(run, log).verdict == "pass"


def supervise(run: Run, nodes: NodeGroup, observer, world_size: int, **policy) -> Attempt:
    supervisor = Supervisor(
        run,
        CommitLog(open_store(run.store_url)),
        policy=RestartPolicy(**policy),
        observers=[observer],
        clock=SystemClock(),
        nodes=nodes,
    )
    last = supervisor.run(world_size)
    nodes.end(0)
    nodes.close()
    return last


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 240
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.slow
def test_one_node_is_told_to_stop_and_leaves_another_is_lent_and_the_weights_are_the_undisturbed_ones(
    new_tiny_run, run_it, start_follower, lend, tmp_path: Path
) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=4)
    run, port = new_tiny_run(trainer__epochs=4, trainer__commit_every=5), free_port()
    log = CommitLog(open_store(run.store_url))
    nodes = led_nodes(run, port)
    stays, leaves = (start_follower(run, port, node=node, num_nodes=3) for node in (1, 2))

    def kill_a_rank_once_another_node_waits() -> None:
        lend(run)
        until(lambda: nodes.room(3) == 3)
        os.kill(ranks_of(stays.pid)[0], signal.SIGKILL)

    disturb = Disturb(log, [leaves.terminate, kill_a_rank_once_another_node_waits])
    slow = Slow(type="slow", attempt=2, rank=0, step=1, extra_s=0.5)  # so that there is time for a node to come
    supervise(run, nodes, disturb, 3, faults=FaultPlan(faults=(slow,)))
    assert [attempt.world_size for attempt in disturb.ended] == [3, 2, 3]
    assert [attempt.outcome for attempt in disturb.ended] == ["preempted", "killed", "succeeded"]
    assert disturb.ended[0].reason.startswith("node 2 (") and "the run continues" in disturb.ended[0].reason
    assert disturb.ended[0].end_step > 0, "it committed"
    assert disturb.ended[1].start_step == disturb.ended[0].end_step, "no step was lost"
    assert leaves.wait(20) == 75
    assert "Traceback" not in "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert log.finished().weights_digest == undisturbed.finished().weights_digest
    assert audit_run(run, log).verdict == "pass"


@pytest.mark.slow
def test_a_run_commits_and_restarts_for_a_node_that_is_lent_where_that_pays(
    new_tiny_run, run_it, start_follower, lend
) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=4)
    run, port = new_tiny_run(trainer__epochs=4), free_port()
    nodes, ended = led_nodes(run, port), Disturb(CommitLog(open_store(run.store_url)), [lambda: lend(run)])
    nodes._quiet_s = 3.0
    start_follower(run, port)
    until(lambda: nodes.room(3) == 2)
    slow = Slow(type="slow", rank=0, step=1, extra_s=1.0)
    last = supervise(run, nodes, ended, 3, faults=FaultPlan(faults=(slow,)))
    assert [attempt.world_size for attempt in ended.ended] == [2, 3]
    assert ended.ended[0].reason.startswith("nodes have joined, so there is room for 3 ranks: committed")
    assert last.start_step == ended.ended[0].end_step
    assert ended.log.finished().weights_digest == undisturbed.finished().weights_digest
    assert audit_run(run, ended.log).verdict == "pass"


@pytest.mark.slow
def test_the_lead_is_told_to_stop_and_another_node_leads_on_to_the_undisturbed_weights(
    new_tiny_run, run_it, start_follower, tmp_path: Path
) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=2)
    run, port = new_tiny_run(trainer__epochs=2), free_port()
    plan, events = tmp_path / "faults.yaml", tmp_path / "told"
    plan.write_text("faults: [{type: leave, node: 0, step: 7}, {type: leave, attempt: 2, node: 0, step: 14}]")
    settings = Home.from_environment().folder / "settings.yaml"
    settings.write_text(f"on_event: 'echo $ASSAY_EVENT $ASSAY_STEP >> {events}'")
    nodes = in_order(run, range(3), lambda node: start_follower(run, port, node, 3, options=("--faults", str(plan))))
    assert [node.wait(600) for node in nodes] == [75, 75, 0]
    words = [(tmp_path / f"node-{node}.log").read_text() for node in range(3)]
    assert f"run {run.run_id} continues on node 1 (" in words[0] and "continues on node 2 (" in words[1]
    assert not any("--resume" in text for text in words), "nobody is asked to do anything"
    assert "audit           pass" in words[2] and not any("Traceback" in text for text in words)
    log, attempts = CommitLog(open_store(run.store_url)), saved_attempts(Path(run.run_dir))
    assert [attempt.world_size for attempt in attempts] == [3, 2, 1]
    assert [attempt.outcome for attempt in attempts] == ["preempted", "preempted", "succeeded"]
    assert attempts[1].start_step == attempts[0].end_step, "no step was lost"
    assert attempts[2].start_step == attempts[1].end_step > attempts[0].end_step
    until(lambda: events.exists() and len(events.read_text().splitlines()) == 3)
    ends = [attempt.end_step for attempt in attempts]
    expected = [f"{event} {step}" for event, step in zip(("moved", "moved", "finished"), ends, strict=True)]
    assert events.read_text().splitlines() == expected
    assert log.finished().weights_digest == undisturbed.finished().weights_digest
    assert audit_run(run, log).verdict == "pass"


@pytest.mark.slow
def test_all_nodes_are_told_to_stop_and_the_run_ends_to_be_gone_on_with(new_tiny_run, start_follower) -> None:
    run, port = new_tiny_run(trainer__epochs=50), free_port()
    log = CommitLog(open_store(run.store_url))
    nodes = [start_follower(run, port, node, 2, options=("--max-restarts", "0")) for node in range(2)]
    until(lambda: last_step(log) > 0)
    for node in nodes:
        node.terminate()
    assert [node.wait(300) for node in nodes] == [75, 75]
    assert log.finished() is None and len(saved_attempts(Path(run.run_dir))) == 1


class ComeAndGo:
    """Nodes that leave and come, one thing an attempt, each as a seed says and once a commit was made."""

    def __init__(self, run: Run, nodes: NodeGroup, followers: dict[int, subprocess.Popen], lend, seed: int) -> None:
        self.run, self.nodes, self.followers, self.lend = run, nodes, followers, lend
        self.rng, self.left, self.did = random.Random(seed), 3, []
        self.log = CommitLog(open_store(run.store_url))
        self.num_requests = 1 + len(followers)
        self.lent: list[subprocess.Popen] = []

    def attempt_began(self, attempt, pids) -> None:
        self.step_before, self.is_done, self.pids = last_step(self.log), False, pids

    def tick(self, attempt) -> None:
        if not self.is_done and self.left and last_step(self.log) > self.step_before:
            self.is_done, self.left = True, self.left - 1
            self.do(self.rng.choice(["kill", "leave", "cut", "join"]))

    def do(self, what: str) -> None:
        present = sorted(self.nodes._busy & self.followers.keys())
        if what == "join" or not present:
            self.lent.append(self.lend(self.run))
            room_now = self.nodes.room(99)
            until(lambda: self.nodes.room(99) > room_now)
            what, present = "kill", present or [0]
            self.did.append("join")
        node = self.rng.choice(present)
        self.did.append(f"{what} {node}")
        if what == "leave":
            self.followers[node].terminate()
        elif what == "cut":
            self.nodes._peers[node].link.close()
        elif node == 0:
            with contextlib.suppress(ProcessLookupError):  # it may have trained to the end while a node came
                os.kill(self.pids[0], signal.SIGKILL)
        else:
            self.followers[node].kill()

    def attempt_ended(self, attempt) -> None: ...


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_whatever_nodes_come_and_go_the_weights_are_the_undisturbed_ones(
    seed: int, new_tiny_run, undisturbed_4, start_follower, lend
) -> None:
    rng = random.Random(seed)
    run, port, num_nodes = new_tiny_run(trainer__epochs=4), free_port(), rng.randint(3, 3 if seed < 5 else 8)
    nodes = led_nodes(run, port)
    followers = {node: start_follower(run, port, node, num_nodes) for node in range(1, num_nodes)}
    life = ComeAndGo(run, nodes, followers, lend, seed)
    last = supervise(run, nodes, life, num_nodes)
    assert last.outcome == "succeeded", life.did
    assert life.log.finished().weights_digest == undisturbed_4, life.did
    assert audit_run(run, life.log).verdict == "pass"


@pytest.fixture(scope="module")
def undisturbed_4(tmp_path_factory, run_here) -> str:
    """What four epochs end with when nothing happens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(tmp_path_factory.mktemp("undisturbed")))
        _, log, _ = run_here(trainer__epochs=4)
    return log.finished().weights_digest


@pytest.mark.slow
def test_a_node_of_another_kind_is_refused_by_name_before_anything_is_begun(
    new_tiny_run, start_follower, tmp_path: Path
) -> None:
    run, port = new_tiny_run(), free_port()
    nodes = led_nodes(run, port)
    refused = start_follower(run, port, ATEN_CPU_CAPABILITY="default")
    with pytest.raises(ConfigError, match=r"processors that round differently.*; node 1 \(.*\) is .*ATen DEFAULT"):
        supervise(run, nodes, Disturb(CommitLog(open_store(run.store_url)), []), 2)
    assert CommitLog(open_store(run.store_url)).entries() == []
    assert refused.wait(20) == 2 and "ATen DEFAULT" in (tmp_path / "node-1.log").read_text()
    nodes.close()


@pytest.mark.slow
def test_a_rank_that_hangs_on_another_node_is_named_with_its_stacks(new_tiny_run, start_follower) -> None:
    run, port = new_tiny_run(), free_port()
    nodes = led_nodes(run, port)
    start_follower(run, port)
    hang = SignalFault(type="hang", rank=1, step=7)
    ended = Disturb(CommitLog(open_store(run.store_url)), [])

    Supervisor(
        run,
        CommitLog(open_store(run.store_url)),
        policy=RestartPolicy(hang_s=8.0, faults=FaultPlan(faults=(hang,))),
        observers=[ended],
        clock=SystemClock(),
        nodes=nodes,
    ).run(2)
    nodes.end(0)
    nodes.close()

    assert ended.ended[-1].outcome == "succeeded"
    failure = ended.ended[0].failure
    assert ended.ended[0].reason.startswith("rank 1 hung in 'compute' of step 7")
    assert "stopped by a signal" in failure.text
    assert "Thread" in Path(run.run_dir, failure.file).read_text()


EXTRA_S = 0.25


@pytest.fixture
def slow_nodes(start_follower, tmp_path: Path) -> Callable[..., subprocess.Popen]:
    """Start a node of a run whose steps take so long that there is time to disturb its first attempts."""
    slow = [f"{{type: slow, attempt: {attempt}, step: 1, extra_s: {EXTRA_S}}}" for attempt in range(1, 5)]
    plan = tmp_path / "slow.yaml"
    plan.write_text(f"faults: [{', '.join(slow)}]")
    port = free_port()

    def start(run: Run, node: int, workers: str = "3", **variables: str) -> subprocess.Popen:
        options = (f"--workers={workers}", f"--faults={plan}")
        return start_follower(run, port, node, 3, options=options, **variables)

    return start


def attempts(run: Run) -> list[Attempt]:
    return saved_attempts(Path(run.run_dir))


def until_it_goes_on(run: Run, log: CommitLog, attempt: int) -> None:
    """Until an attempt has made a commit."""
    until(lambda: any(commit.attempt == attempt for commit in log.commits()))


def signal_node(supervisor: subprocess.Popen, number: int) -> None:
    """To all processes of a node."""
    pids = [supervisor.pid, *children(supervisor.pid), *ranks_of(supervisor.pid)]
    for pid in pids:
        os.kill(pid, number)


def assert_undisturbed(run: Run, log: CommitLog, undisturbed: CommitLog, folder: Path) -> None:
    assert log.finished().weights_digest == undisturbed.finished().weights_digest
    assert audit_run(run, log).verdict == "pass"
    assert not any("Traceback" in path.read_text() for path in folder.glob("node-*.log"))


@pytest.mark.slow
def test_the_lead_is_killed_twice_and_the_next_node_leads_on_to_the_undisturbed_weights(
    new_tiny_run, run_it, slow_nodes, tmp_path: Path
) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=2)
    run = new_tiny_run(trainer__epochs=2, trainer__commit_every=2)
    log = CommitLog(open_store(run.store_url))
    nodes = in_order(run, range(3), lambda node: slow_nodes(run, node))
    until_it_goes_on(run, log, attempt=1)
    for leader in (0, 1):
        nodes[leader].kill()
        killed_s = time.time()
        until_it_goes_on(run, log, attempt=leader + 2)
        assert attempts(run)[-1].started_s - killed_s < 15
    assert [node.wait(300) for node in nodes] == [-9, -9, 0]
    assert [(attempt.world_size, attempt.outcome) for attempt in attempts(run)] == [
        (3, "killed"), (2, "killed"), (1, "succeeded"),
    ]  # fmt: skip
    assert_undisturbed(run, log, undisturbed, tmp_path)


@pytest.mark.slow
def test_a_lead_that_stands_still_is_replaced_and_follows_when_it_wakes_up(
    new_tiny_run, run_it, slow_nodes, tmp_path: Path
) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=4)
    run = new_tiny_run(trainer__epochs=4, trainer__commit_every=2)
    log = CommitLog(open_store(run.store_url))
    nodes = in_order(run, range(2), lambda node: slow_nodes(run, node, "2"))
    until_it_goes_on(run, log, attempt=1)
    signal_node(nodes[0], signal.SIGSTOP)
    until_it_goes_on(run, log, attempt=2)
    signal_node(nodes[0], signal.SIGCONT)
    assert [node.wait(300) for node in nodes] == [0, 0]
    assert "another node leads, and node 0 follows it" in (tmp_path / "node-0.log").read_text()
    assert [attempt.world_size for attempt in attempts(run)] == [2, 1, 2]
    assert_undisturbed(run, log, undisturbed, tmp_path)


@pytest.mark.slow
def test_a_run_begins_with_the_fewest_nodes_grows_and_loses_a_follower_and_another_kind_is_refused(
    new_tiny_run, run_it, slow_nodes, tmp_path: Path
) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=5)
    run = new_tiny_run(trainer__epochs=5, trainer__commit_every=2)
    log = CommitLog(open_store(run.store_url))
    first = slow_nodes(run, 1, "1..2")
    until_it_goes_on(run, log, attempt=1)
    refused = slow_nodes(run, 2, "1..2", ATEN_CPU_CAPABILITY="default")
    assert refused.wait(60) == 1 and "ATen DEFAULT" in (tmp_path / "node-2.log").read_text()
    second = slow_nodes(run, 0, "1..2")
    until_it_goes_on(run, log, attempt=2)
    second.kill()
    assert first.wait(300) == 0
    assert [(attempt.world_size, attempt.outcome) for attempt in attempts(run)] == [
        (1, "preempted"), (2, "killed"), (1, "succeeded"),
    ]  # fmt: skip
    assert attempts(run)[1].reason.startswith("node 0 was lost with rank 1")
    assert_undisturbed(run, log, undisturbed, tmp_path)


@pytest.mark.slow
def test_all_nodes_die_and_come_again_though_another_process_has_the_port_of_the_lead(
    new_tiny_run, run_it, slow_nodes, tmp_path: Path
) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=2)
    run = new_tiny_run(trainer__epochs=2, trainer__commit_every=2)
    log = CommitLog(open_store(run.store_url))
    nodes = in_order(run, range(2), lambda node: slow_nodes(run, node, "2"))
    until_it_goes_on(run, log, attempt=1)
    for node in nodes:
        node.kill()
        node.wait()
    known = leader_address(Path(run.run_dir))
    with socket.create_server((known.host, known.port)):  # it says nothing
        again = [slow_nodes(run, node, "2") for node in (1, 0)]
        assert [node.wait(300) for node in again] == [0, 0]
    finished = slow_nodes(run, 0, "2")
    assert finished.wait(60) == 0
    assert [(attempt.world_size, attempt.start_step > 0) for attempt in attempts(run)] == [(2, False), (2, True)]
    assert_undisturbed(run, log, undisturbed, tmp_path)


class FencedOnceStopped(ThisMachine):
    """A node that is asked to stop when another one has been found to lead."""

    def fitting(self, world_size: int) -> int:
        signal.raise_signal(signal.SIGTERM)
        raise FencedError("another node leads")


def test_a_leader_that_is_asked_to_stop_while_it_is_fenced_leaves(new_tiny_run) -> None:
    home, run = Home.from_environment(), new_tiny_run()
    with writer_of(home, run) as writer:
        nodes, policy = FencedOnceStopped(run), RestartPolicy()
        result = train_run(home, run, writer, world_size=1, policy=policy, nodes=nodes)
    assert (result.outcome, result.error, result.continues_on) == ("moved", None, "another node")
