"""A real Ray cluster whose nodes die, come and are drained: the run goes on, on those that there are."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.launchers.launches import kill, state_of, stop, waiting_words
from assay.launchers.ray.launcher import RayConfig, RayLauncher, check
from assay.records.launch import Launch
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.launches import saved_launches
from assay.store.objects import open_store
from assay.training.audit import audit_run
from ray_cluster import RayCluster, RayNode
from slurm_cluster import wait_until as wait_shortly

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
EPOCHS, STEP_S = 2, 0.4
RECIPE = {"trainer__epochs": EPOCHS, "trainer__commit_every": 1}
SLOW_S = {1: STEP_S, 2: 1.5}
"""Attempt -> seconds more of a step, so that there is time for machines to come and go."""
FOLLOWER_S, LEADER_S = 5.0, 15.0
"""Goals, on a quiet machine: seconds until the next commit after the death of a node."""


def wait_until(is_so, what: str) -> None:
    wait_shortly(is_so, what, timeout_s=240)


@pytest.fixture
def ray(ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    """With three nodes of one processor each, beside the head that has none."""
    for name, value in ray_cluster.environment.items():
        monkeypatch.setenv(name, value)
    ray_cluster.forget_ended()
    ray_cluster.add_nodes(4 - len(ray_cluster.nodes))
    yield ray_cluster
    for node in ray_cluster.nodes[4:]:
        ray_cluster.kill(node)


class Started:
    """A run on the cluster."""

    def __init__(self, run: Run, launch: Launch) -> None:
        self.run, self.launch = run, launch
        self.log = CommitLog(open_store(run.store_url))

    def step(self) -> int:
        """That of the last commit."""
        return max((commit.step for commit in self.log.commits()), default=0)

    def attempts(self) -> list[Attempt]:
        return saved_attempts(Path(self.run.run_dir))

    def text(self, name: str) -> str:
        file = Path(self.run.run_dir, "ray", f"{name}.log")
        return file.read_text() if file.exists() else ""

    def leader(self) -> int:
        return next(index for index in (0, 1) if "leads, at" in self.text(f"node-{index}"))

    def machine(self, cluster: RayCluster, index: int) -> RayNode:
        return next(node for node in cluster.nodes if self.commands(node, index))

    def commands(self, node: RayNode, index: int) -> list[int]:
        """The processes of the command of a node on a machine."""
        words = ("assay.launchers.ray.child", self.run.run_id, f"--node {index} ")
        return [pid for pid in node.processes() if all(word in " ".join(command_line(pid)) for word in words)]

    def assert_as_if_nothing_had_happened(self, digest: str) -> None:
        wait_until(lambda: state_of(self.launch) == "ended", "the run to end")
        finished = self.log.finished()
        assert finished is not None, self.text("driver") + self.text("node-0")
        assert finished.weights_digest == digest
        assert audit_run(self.run, self.log).verdict == "pass"


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


@pytest.fixture
def undisturbed(run_it) -> str:
    return run_it(**RECIPE)[1].finished().weights_digest


@pytest.fixture
def start(ray: RayCluster, new_tiny_run, tmp_path: Path) -> Iterator[Callable[..., "Started"]]:
    runs: list[Started] = []

    def start(workers: str = "2", nodes: int = 2) -> Started:
        run, plan = new_tiny_run(**RECIPE), tmp_path / "faults.yaml"
        faults = [f"{{type: slow, attempt: {n}, step: 1, extra_s: {extra_s}}}" for n, extra_s in SLOW_S.items()]
        plan.write_text(f"faults: [{', '.join(faults)}]")
        options = (f"--faults={plan}", *([f"--workers={workers}"] if ".." in workers else []))
        launcher = RayLauncher(Home.from_environment(), RayConfig(nodes=nodes), options)
        runs.append(Started(run, launcher.start(run, world_size=int(workers.rpartition("..")[2]))))
        return runs[-1]

    yield start
    for started in runs:
        kill(started.launch)
        for name in ("driver", "node-0", "node-1"):
            print(f"{name}.log:", *started.text(name).splitlines()[-30:], sep="\n  ")


def seconds_to_next_commit(started: Started, begin_s: float) -> float:
    """Likewise of an attempt that is not the one that is there now."""
    attempt = len(started.attempts())
    wait_until(lambda: any(commit.attempt > attempt for commit in started.log.commits()), "a commit without the node")
    return time.monotonic() - begin_s


@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_machine_that_dies_costs_seconds_and_another_takes_its_place(
    ray: RayCluster, start, undisturbed: str, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    started = start()
    wait_until(lambda: started.step() >= 3, "commits")
    leader = started.leader()
    machine = started.machine(ray, leader if role == "leader" else 1 - leader)
    load, begin_s = os.getloadavg()[0], time.monotonic()
    ray.kill(machine)
    elapsed_s = seconds_to_next_commit(started, begin_s)
    with capsys.disabled():
        print(f"\n{role} killed: the next commit {elapsed_s:.1f} s later (load {load:.1f}, a step {STEP_S} s)")
    wait_until(lambda: len(started.attempts()) > 2 or state_of(started.launch) == "ended", "another machine")
    assert [attempt.world_size for attempt in started.attempts()] == [2, 1, 2]
    started.assert_as_if_nothing_had_happened(undisturbed)
    assert elapsed_s < (LEADER_S if role == "leader" else FOLLOWER_S) * max(1.0, load)


def test_what_a_raylet_leaves_behind_ends_in_time(ray: RayCluster, start, undisturbed: str) -> None:
    started = start()
    wait_until(lambda: started.step() >= 3, "commits")
    follower = 1 - started.leader()
    machine = started.machine(ray, follower)
    orphans = started.commands(machine, follower)
    assert orphans
    os.kill(machine.raylet(), 9)
    wait_until(lambda: not any(command_line(pid) for pid in orphans), "the orphans' end")
    ray.kill(machine)
    started.assert_as_if_nothing_had_happened(undisturbed)
    before, after = started.attempts()[:2]
    assert after.start_step == before.end_step, "it committed before it ended"


def test_a_run_grows_onto_a_machine_that_is_added(ray: RayCluster, start, undisturbed: str) -> None:
    for machine in ray.nodes[2:]:
        ray.kill(machine)
    started = start("1..2")
    wait_until(lambda: started.step() >= 2, "commits")
    assert started.attempts()[0].world_size == 1
    ray.add_nodes(1)
    wait_until(lambda: started.attempts()[-1].world_size == 2, "an attempt on both")
    started.assert_as_if_nothing_had_happened(undisturbed)


def test_a_drained_machine_is_left_in_time(ray: RayCluster, start, undisturbed: str) -> None:
    started = start()
    wait_until(lambda: started.step() >= 3, "commits")
    follower = 1 - started.leader()
    machine = started.machine(ray, follower)
    ray.drain(machine, seconds=60)
    wait_until(lambda: not started.commands(machine, follower), "the command to leave the machine")
    wait_until(lambda: f"node {follower} has left with exit code 75" in started.text("driver"), "its exit code")
    ray.kill(machine)
    started.assert_as_if_nothing_had_happened(undisturbed)
    before, after = started.attempts()[:2]
    assert after.start_step == before.end_step > before.start_step, "no step was lost"


@pytest.mark.soak
def test_a_driver_that_dies_finds_its_nodes_again_and_is_stopped(ray: RayCluster, start) -> None:
    started = start()
    wait_until(lambda: started.step() >= 2, "commits")
    commands = [pid for index in (0, 1) for pid in started.commands(started.machine(ray, index), index)]
    (driver,) = [pid for node in ray.nodes for pid in node.processes() if command_line(pid)[:1] == ["ray::RayDriver"]]
    os.kill(driver, 9)
    before = started.step()
    wait_until(lambda: started.text("driver").count("node 1 runs on") == 2, "the driver to find its nodes")
    assert commands == [pid for index in (0, 1) for pid in started.commands(started.machine(ray, index), index)]
    assert started.step() > before and len(started.attempts()) == 1
    stop(started.launch)
    wait_until(lambda: state_of(started.launch) == "ended", "the run to leave")
    assert started.attempts()[-1].outcome == "preempted" and started.log.finished() is None
    stop(started.launch)  # what has ended stays so


@pytest.mark.soak
def test_a_killed_run_leaves_nothing(ray: RayCluster, start) -> None:
    started = start()
    wait_until(lambda: started.step() >= 2, "commits")
    processes = [pid for node in ray.nodes for pid in node.processes() if started.run.run_id in command_line(pid)]
    with pytest.raises(ConfigError, match="the cluster has an actor"):
        RayLauncher(Home.from_environment(), RayConfig(nodes=2)).start(started.run, world_size=2)
    kill(started.launch)
    wait_until(lambda: not any(command_line(pid) for pid in processes), "all processes to end")
    assert state_of(started.launch) == "ended"


@pytest.mark.soak
def test_two_commands_at_once_start_one_driver(ray: RayCluster, new_tiny_run) -> None:
    run = new_tiny_run(**RECIPE)

    def start(_: int) -> str:
        try:
            launch = RayLauncher(Home.from_environment(), RayConfig()).start(run, world_size=1)
        except ConfigError as error:
            return str(error)
        return launch.process

    with ThreadPoolExecutor() as pool:
        results = {*pool.map(start, range(2))}
    launch = saved_launches(run)[0]
    drivers = [pid for node in ray.nodes for pid in node.processes() if command_line(pid)[:1] == ["ray::RayDriver"]]
    kill(launch)
    assert len(drivers) == 1
    assert {text for text in results if "@" in text} == {launch.process}
    assert all("at the same time" in text or "already" in text for text in results - {launch.process})


@pytest.mark.soak
def test_a_run_that_does_not_fit_waits_and_says_for_what(ray: RayCluster, start) -> None:
    started = start("5", nodes=5)
    wait_shortly(lambda: state_of(started.launch) == "queued", "its state")
    expected = "it needs 5 nodes with 1 CPU each; the cluster has 3 of that size"
    wait_shortly(lambda: expected in waiting_words(started.launch), "the reason")
    assert expected in started.text("driver")
    stop(started.launch)
    wait_until(lambda: state_of(started.launch) == "ended", "its end")
    assert not started.attempts()


@pytest.mark.soak
def test_what_cannot_work_is_refused_before_anything_is_started(
    ray: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    check(RayConfig(), world_size=1)
    with pytest.raises(ConfigError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        check(RayConfig(ray_address="127.0.0.1:1"), world_size=1)
    with pytest.raises(ConfigError, match="ray://"):
        check(RayConfig(ray_address="ray://127.0.0.1:10001"), world_size=1)
    with pytest.raises(ConfigError, match="some node would have none"):
        check(RayConfig(nodes=2), world_size=1)
    with monkeypatch.context() as other:
        other.setenv("ASSAY_LEDGER", "postgresql://assay@127.0.0.1:1/db")
        with pytest.raises(ConfigError, match=r"machine .* has another \$ASSAY_LEDGER"):
            check(RayConfig(), world_size=1)
    (tmp_path / "assay").mkdir()
    (tmp_path / "assay" / "__init__.py").write_text("raise ImportError('not here')")
    ray.environment["PYTHONPATH"] = str(tmp_path)
    try:
        (bare,) = ray.add_nodes(1)
    finally:
        del ray.environment["PYTHONPATH"]
    with pytest.raises(ConfigError, match=r"machine .* has no assay \(not here\)"):
        check(RayConfig(), world_size=1)
    ray.kill(bare)


@pytest.mark.soak
def test_a_final_error_of_a_node_ends_the_run_with_its_message(ray: RayCluster, new_tiny_run) -> None:
    run = new_tiny_run(**RECIPE)
    launcher = RayLauncher(Home.from_environment(), RayConfig(), ("--no-such-option",))
    started = Started(run, launcher.start(run, world_size=1))
    wait_until(lambda: state_of(started.launch) == "ended", "its end")
    assert "node 0 cannot run it: " in started.text("driver") and "no-such-option" in started.text("driver")


@pytest.mark.soak
def test_a_client_of_another_version_is_told_both(ray: RayCluster) -> None:
    program = "import ray, runpy, sys; ray.__version__ = '2.1.0'; sys.argv = ['client', 'state']"
    program += "; runpy.run_module('assay.launchers.ray.client', run_name='__main__')"
    request = json.dumps({"cluster": "127.0.0.1:6379", "name": "x", "actor_id": "y"})
    done = subprocess.run([sys.executable, "-c", program], input=request, capture_output=True, text=True)
    message = json.loads(done.stdout)["error"]
    assert message.startswith("this environment does not fit the cluster.") and "2.1.0" in message


def test_no_listing_holds_a_secret(ray: RayCluster, start, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = f"hunter{random.getrandbits(40)}"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    started = start()
    wait_until(lambda: "node 0 runs" in started.text("driver"), "its nodes")
    program = (
        "import ray; ray.init(address='auto', log_to_driver=False); from ray._private.state import state; "
        "print(ray.nodes(), state.actor_table(None), state.job_table(), ray.util.placement_group_table())"
    )
    environment = {**os.environ, "AWS_SECRET_ACCESS_KEY": ""}
    listed = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout
    kill(started.launch)
    assert started.launch.job in listed and "assay.launchers.ray.client" in listed
    assert secret not in listed
    assert not [file for file in ray.logs() if secret in file.read_text(errors="replace")]
