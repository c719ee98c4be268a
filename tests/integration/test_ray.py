"""What only Ray does to a run: its raylet alone dies, its driver dies or fails, it does not fit."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.launchers.launches import kill, state_of, stop, waiting_words
from assay.launchers.ray import driver
from assay.launchers.ray.launcher import RayConfig, check
from assay.records.run import Run
from assay.training.audit import audit_run
from engines.engine import StartedRun, command_lines, wait_until
from engines.ray import Ray, command_lines_of
from ray_cluster import RayCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RECIPE = {"trainer__epochs": 2, "trainer__commit_every": 1}
SLOW_S = {1: 0.4, 2: 1.5}
"""Attempt -> seconds more of a step, so that there is time for something to happen."""


@pytest.fixture
def ray(ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Ray:
    for name, value in ray_cluster.environment.items():
        monkeypatch.setenv(name, value)
    return Ray(ray_cluster)


@pytest.fixture
def undisturbed(run_it) -> str:
    return run_it(**RECIPE)[1].finished().weights_digest


@pytest.fixture
def start(ray: Ray, new_tiny_run: Callable[..., Run], tmp_path: Path) -> Iterator[Callable[..., StartedRun]]:
    runs: list[StartedRun] = []

    def start(*options: str, nodes: int = 2) -> StartedRun:
        run, plan = new_tiny_run(**RECIPE), tmp_path / "faults.yaml"
        faults = [f"{{type: slow, attempt: {n}, step: 1, extra_s: {extra_s}}}" for n, extra_s in SLOW_S.items()]
        plan.write_text(f"faults: [{', '.join(faults)}]")
        launcher = ray.launcher(nodes=nodes, options=(f"--faults={plan}", *options))
        runs.append(StartedRun(run, launcher.start(run, world_size=nodes)))
        return runs[-1]

    yield start
    for started in runs:
        kill(started.launch)
        print(*ray.output(started).splitlines()[-60:], sep="\n  ")


def test_what_a_raylet_leaves_behind_ends_in_time(ray: Ray, ray_cluster: RayCluster, start, undisturbed: str) -> None:
    started = start()
    wait_until(lambda: started.step() >= 3, "commits")
    follower = 1 - ray.leader(started)
    machine = ray.machine(started, follower)
    orphans = ray.commands(machine, started, follower)
    assert orphans
    os.kill(machine.raylet(), 9)
    wait_until(lambda: not {pid for pid, _ in command_lines()} & {*orphans}, "the orphans' end")
    ray_cluster.kill(machine)
    started.wait_for_end()
    assert started.log.finished().weights_digest == undisturbed
    assert audit_run(started.run, started.log).verdict == "pass"
    before, after = started.attempts()[:2]
    assert after.start_step == before.end_step, "it committed before it ended"


def drivers(cluster: RayCluster) -> list[int]:
    return [pid for node in cluster.nodes for pid, line in command_lines_of(node) if line.startswith("ray::RayDriver")]


@pytest.mark.soak
def test_a_driver_that_dies_finds_its_nodes_again_and_is_stopped(ray: Ray, ray_cluster: RayCluster, start) -> None:
    started = start()
    wait_until(lambda: started.step() >= 2, "commits")
    commands = [ray.commands(ray.machine(started, index), started, index) for index in (0, 1)]
    [driver_pid] = drivers(ray_cluster)
    os.kill(driver_pid, 9)
    before = started.step()
    wait_until(lambda: ray.output(started).count("node 1 runs on") == 2, "the driver to find its nodes")
    assert commands == [ray.commands(ray.machine(started, index), started, index) for index in (0, 1)]
    assert started.step() > before and len(started.attempts()) == 1
    stop(started.launch)
    started.wait_for_end()
    assert started.attempts()[-1].outcome == "preempted" and started.log.finished() is None
    stop(started.launch)  # what has ended stays so


@pytest.mark.soak
def test_a_killed_run_leaves_nothing(ray_cluster: RayCluster, start) -> None:
    started = start()
    wait_until(lambda: started.step() >= 2, "commits")
    lines = [(pid, line) for node in ray_cluster.nodes for pid, line in command_lines_of(node)]
    processes = {pid for pid, line in lines if started.run.run_id in line}
    assert processes
    kill(started.launch)
    wait_until(lambda: not {pid for pid, _ in command_lines()} & processes, "all processes to end")
    assert state_of(started.launch) == "ended"


@pytest.mark.soak
def test_a_run_that_does_not_fit_waits_and_says_for_what(ray: Ray, start) -> None:
    started = start(nodes=5)
    wait_until(lambda: state_of(started.launch) == "queued", "its state")
    expected = "it needs 5 nodes with 1 CPU each; the cluster has 3 of that size"
    wait_until(lambda: expected in waiting_words(started.launch), "the reason")
    assert expected in ray.output(started)
    stop(started.launch)
    started.wait_for_end()
    assert not started.attempts()


@pytest.mark.soak
def test_what_cannot_work_is_refused_before_anything_is_started(
    ray: Ray, ray_cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    ray_cluster.environment["PYTHONPATH"] = str(tmp_path)
    try:
        (bare,) = ray_cluster.add_nodes(1)
    finally:
        del ray_cluster.environment["PYTHONPATH"]
    with pytest.raises(ConfigError, match=r"machine .* has no assay \(not here\)"):
        check(RayConfig(), world_size=1)
    ray_cluster.kill(bare)


@pytest.mark.soak
def test_a_final_error_of_a_node_ends_the_run_with_its_message(ray: Ray, start) -> None:
    started = start("--no-such-option", nodes=1)
    started.wait_for_end()
    assert_shown(ray, started, "node 0 cannot run it: ", "no-such-option")


@pytest.mark.soak
def test_a_driver_that_fails_again_and_again_ends_the_run_with_its_error(
    ray: Ray, ray_cluster: RayCluster, new_tiny_run: Callable[..., Run]
) -> None:
    run = new_tiny_run(**RECIPE)
    Path(run.run_dir, "link.key").mkdir()  # which a driver cannot write
    started = StartedRun(run, ray.launcher().start(run, world_size=1))
    wait_until(lambda: "Traceback" in ray.output(started), "the first failure")
    assert state_of(started.launch) != "ended"
    started.wait_for_end()
    assert_shown(
        ray, started, f"its driver failed {driver.MAX_FAILURES + 1} times in a row", "the key of the run's nodes"
    )
    wait_until(lambda: not drivers(ray_cluster), "the driver's end")


def assert_shown(ray: Ray, started: StartedRun, *words: str) -> None:
    """In the driver's log, and by the command that shows the run."""
    command = [sys.executable, "-m", "assay", "runs", "show", started.run.run_id]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for text in (ray.output(started), " ".join(shown.split())):
        assert all(word in text for word in words), text


@pytest.mark.soak
def test_a_client_of_another_version_is_told_both(ray: Ray) -> None:
    program = "import ray, runpy, sys; ray.__version__ = '2.1.0'; sys.argv = ['client', 'state']"
    program += "; runpy.run_module('assay.launchers.ray.client', run_name='__main__')"
    request = json.dumps({"cluster": "127.0.0.1:6379", "name": "x", "actor_id": "y"})
    done = subprocess.run([sys.executable, "-c", program], input=request, capture_output=True, text=True)
    message = json.loads(done.stdout)["error"]
    assert message.startswith("this environment does not fit the cluster.") and "2.1.0" in message
