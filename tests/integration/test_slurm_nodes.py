"""A real Slurm whose owner drains nodes and lends others: the run goes on, on those that there are."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.launch.places.slurm import SlurmConfig, SlurmLauncher
from assay.launch.places.slurm_drain import LOOK_S
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run
from slurm_cluster import SlurmCluster, missing_program, wait_until

EPOCHS = 4
SLOW = "faults: [{type: slow, step: 1, extra_s: 0.4}, {type: slow, attempt: 2, step: 1, extra_s: 0.4}]"
"""So that there is time for nodes to come and go."""


@pytest.fixture(scope="module")
def three_nodes(requires) -> Iterator[SlurmCluster]:
    missing = missing_program()
    requires("slurm", missing is None, f"{missing} is not installed")
    cluster = SlurmCluster(num_nodes=3)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def slurm(three_nodes: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """That of three nodes, all of which can be used again afterwards."""
    for name, value in three_nodes.environment.items():
        monkeypatch.setenv(name, value)
    yield three_nodes
    three_nodes.call("scontrol", "update", "NodeName=n[1-3]", "State=RESUME")


def nodes_of(slurm: SlurmCluster, job: str) -> list[str]:
    held = slurm.call("squeue", "--noheader", f"--jobs={job}", "--format=%N")
    return slurm.call("scontrol", "show", "hostnames", held).split()


def drain(slurm: SlurmCluster, node: str) -> None:
    slurm.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")


def state(slurm: SlurmCluster, node: str) -> str:
    return slurm.call("sinfo", "--noheader", "--partition=low", f"--nodes={node}", "--format=%T")


def restarts(slurm: SlurmCluster, job: str) -> str:
    words = slurm.call("scontrol", "show", "job", job).split()
    return next(word.partition("=")[2] for word in words if word.startswith("Restarts="))


def attempts(run: Run) -> list[Attempt]:
    return saved_attempts(Path(run.run_dir))


def begun(run: Run, number: int) -> Callable[[], bool]:
    """Whether ranks of that attempt run."""
    return lambda: len(attempts(run)) >= number and bool(attempts(run)[number - 1].hosts)


def join_on_slurm(run: Run) -> str:
    """The job that lends a node."""
    command = [sys.executable, "-m", "assay", "join", run.run_id, "--on", "slurm", "--partition", "low"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return said.rsplit("scancel ", 1)[1].strip()


@pytest.mark.slow
def test_a_drained_node_is_given_back_and_one_that_is_lent_works_without_a_requeue(
    slurm: SlurmCluster, new_tiny_run, run_it, tmp_path: Path
) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=EPOCHS)
    run = new_tiny_run(trainer__epochs=EPOCHS)
    log, plan = CommitLog(open_store(run.store_url)), tmp_path / "faults.yaml"
    plan.write_text(SLOW)
    launcher = SlurmLauncher(
        Home.from_environment(), SlurmConfig(nodes=2, partition="low"), (f"--faults={plan}",)
    )
    job = launcher.start(run, world_size=2).job
    wait_until(log.commits, "a first commit")
    first, second = nodes_of(slurm, job)

    drain(slurm, second)
    asked_s = time.monotonic()
    wait_until(begun(run, 2), "an attempt without the drained node")
    assert time.monotonic() - asked_s < LOOK_S + 20, "a look, a step, a commit"
    wait_until(lambda: state(slurm, second) == "drained", "the job to give the node up")
    assert nodes_of(slurm, job) == [first]

    lent = join_on_slurm(run)
    wait_until(begun(run, 3), "an attempt with the node that is lent")
    wait_until(lambda: slurm.state(job) not in ("RUNNING", "COMPLETING"), "our job")
    wait_until(lambda: slurm.state(lent) not in ("RUNNING", "COMPLETING"), "the job that lends a node")
    ended = [slurm.state(each) for each in (job, lent)]
    words = Path(run.run_dir, "slurm", f"job-{job}.log").read_text()
    assert ended == ["COMPLETED"] * 2 and (restarts(slurm, job), restarts(slurm, lent)) == ("0", "0"), words
    assert [(each.world_size, each.outcome) for each in attempts(run)] == [
        (2, "preempted"), (1, "preempted"), (2, "succeeded"),
    ]  # fmt: skip
    assert "1 (" in attempts(run)[0].reason and "leaves: committed" in attempts(run)[0].reason
    assert attempts(run)[2].start_step == attempts(run)[1].end_step > attempts(run)[1].start_step
    assert attempts(run)[1].start_step == attempts(run)[0].end_step, "no step was lost"
    assert log.finished().weights_digest == undisturbed.finished().weights_digest
    assert audit_run(run, log).verdict == "pass"
