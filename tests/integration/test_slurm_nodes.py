"""What only Slurm does to the nodes of a run: it keeps the first one, requeues jobs, and loses track of a step."""

import os
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from assay.launchers.slurm import launcher as slurm_launcher
from assay.launchers.slurm.launcher import SlurmConfig, SlurmLauncher
from assay.records.run import Run
from assay.store.home import Home
from assay.training.audit import audit_run
from engines.engine import StartedRun, wait_until
from engines.slurm import supervisor
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
EPOCHS = 2
SLOW = "faults: [{type: slow, step: 1, extra_s: 0.5}, {type: slow, attempt: 2, step: 1, extra_s: 0.5}]"
"""So that there is time for nodes to go."""


@pytest.fixture(autouse=True)
def undrained(slurm: SlurmCluster) -> Iterator[None]:
    """Let all nodes be used again afterwards."""
    yield
    slurm.undrain()


@pytest.fixture
def undisturbed(run_it) -> str:
    return run_it(trainer__epochs=EPOCHS)[1].finished().weights_digest


@pytest.fixture
def start(slurm: SlurmCluster, new_tiny_run: Callable[..., Run]) -> Callable[[], StartedRun]:
    """Start a run that has made a commit on two nodes."""

    def start() -> StartedRun:
        run = new_tiny_run(trainer__epochs=EPOCHS)
        (plan := Path(run.run_dir, "slow.yaml")).write_text(SLOW)
        launcher = SlurmLauncher(Home.from_environment(), SlurmConfig(nodes=2), (f"--faults={plan}",))
        started = StartedRun(run, launcher.start(run, world_size=2))
        wait_until(started.log.commits, "a first commit")
        return started

    return start


def assert_ended(slurm: SlurmCluster, started: StartedRun, digest: str, *, requeues: int) -> None:
    """As if nothing had happened."""
    job = started.launch.job
    wait_until(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), "the job's end")
    assert slurm.state(job) == "COMPLETED", Path(started.launch.log).read_text()
    words = slurm.call("scontrol", "show", "job", job).split()
    assert f"Restarts={requeues}" in words
    assert started.log.finished().weights_digest == digest
    assert audit_run(started.run, started.log).verdict == "pass"


def assert_no_step_was_lost(started: StartedRun) -> None:
    for before, after in pairwise(started.attempts()):
        assert after.start_step == before.end_step > before.start_step


def test_where_the_first_node_is_drained_another_leads_on_and_slurm_keeps_it_for_the_script(
    slurm: SlurmCluster, start: Callable[[], StartedRun], undisturbed: str
) -> None:
    started = start()
    first, second = slurm.nodes_of(started.launch.job)
    slurm.drain(first)
    wait_until(lambda: started.world_sizes() == [2, 1] and started.has_committed(2), "an attempt that another leads")
    assert slurm.nodes_of(started.launch.job) == [first, second]
    assert_ended(slurm, started, undisturbed, requeues=0)
    assert_no_step_was_lost(started)
    wait_until(lambda: slurm.node_state(first) == "drained", "its drain")


def test_where_all_nodes_are_drained_the_job_goes_back_into_the_queue(
    slurm: SlurmCluster, start: Callable[[], StartedRun], undisturbed: str
) -> None:
    started = start()
    slurm.drain("n[1-2]")
    wait_until(lambda: slurm.state(started.launch.job) == "PENDING", "the requeue")
    slurm.undrain()
    assert_ended(slurm, started, undisturbed, requeues=1)
    assert_no_step_was_lost(started)


def test_where_one_node_was_killed_and_the_other_one_is_stopped_the_job_goes_back_into_the_queue(
    slurm: SlurmCluster, start: Callable[[], StartedRun], undisturbed: str
) -> None:
    started = start()
    os.kill(supervisor(started.run, 1), signal.SIGKILL)
    wait_until(lambda: started.has_committed(2), "a commit of the node that is left")
    slurm.call("scancel", "--signal=TERM", started.launch.job)
    assert_ended(slurm, started, undisturbed, requeues=1)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("node", [0, 1])
def test_where_the_slurmstepd_of_a_node_is_killed_the_job_ends_with_the_run(
    slurm: SlurmCluster,
    start: Callable[[], StartedRun],
    undisturbed: str,
    monkeypatch: pytest.MonkeyPatch,
    node: int,
) -> None:
    """srun waits for that node for ever."""
    monkeypatch.setattr(slurm_launcher, "FINISHED_LOOK_S", 3)
    started = start()
    os.kill(parent(parent(supervisor(started.run, node))), signal.SIGKILL)
    assert_ended(slurm, started, undisturbed, requeues=0)
