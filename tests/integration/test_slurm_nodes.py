"""A real Slurm whose owner drains nodes and lends others: the run goes on, on those that there are."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from assay.launchers.slurm import launcher as slurm_launcher
from assay.launchers.slurm.drain import LOOK_S
from assay.launchers.slurm.launcher import SlurmConfig, SlurmLauncher
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run
from slurm_cluster import SlurmCluster, missing_program
from slurm_cluster import wait_until as wait_shortly

EPOCHS = 4
pytestmark = pytest.mark.timeout(900)
SLOW = "faults: [{type: slow, step: 1, extra_s: 0.8}, {type: slow, attempt: 2, step: 1, extra_s: 1.5}]"
"""So that there is time for nodes to come and go."""


def wait_until(is_so: Callable[[], object], what: str) -> None:
    wait_shortly(is_so, what, timeout_s=300)


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
    resume(three_nodes)


def nodes_of(slurm: SlurmCluster, job: str) -> list[str]:
    held = slurm.call("squeue", "--noheader", f"--jobs={job}", "--format=%N")
    return slurm.call("scontrol", "show", "hostnames", held).split()


def drain(slurm: SlurmCluster, node: str) -> None:
    slurm.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")


def resume(slurm: SlurmCluster) -> None:
    for node in ("n1", "n2", "n3"):
        if state(slurm, node).startswith("drain"):
            slurm.call("scontrol", "update", f"NodeName={node}", "State=RESUME")


def state(slurm: SlurmCluster, node: str) -> str:
    return slurm.call("sinfo", "--noheader", "--partition=low", f"--nodes={node}", "--format=%T")


def restarts(slurm: SlurmCluster, job: str) -> str:
    words = slurm.call("scontrol", "show", "job", job).split()
    return next(word.partition("=")[2] for word in words if word.startswith("Restarts="))


def attempts(run: Run) -> list[Attempt]:
    return saved_attempts(Path(run.run_dir))


def has_started(run: Run, number: int) -> Callable[[], bool]:
    """Whether ranks of that attempt run."""
    return lambda: len(attempts(run)) >= number and bool(attempts(run)[number - 1].hosts)


def words_of(run: Run, job: str) -> str:
    return Path(run.run_dir, "slurm", f"job-{job}.log").read_text()


def join_on_slurm(run: Run) -> str:
    """The job that lends a node."""
    command = [sys.executable, "-m", "assay", "train", "join", run.run_id, "--on", "slurm", "--partition", "low"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return output.rsplit("scancel ", 1)[1].strip()


def started(run: Run, folder: Path, slow: str = SLOW) -> tuple[CommitLog, str]:
    """The log of a run that has made a commit on two nodes, and its job."""
    log, plan = CommitLog(open_store(run.store_url)), folder / "faults.yaml"
    plan.write_text(slow)
    config = SlurmConfig(nodes=2, partition="low")
    job = SlurmLauncher(Home.from_environment(), config, (f"--faults={plan}",)).start(run, world_size=2).job
    wait_until(log.commits, "a first commit")
    return log, job


def ended(slurm: SlurmCluster, job: str) -> tuple[str, str]:
    """How the job ended, and how often it was requeued."""
    wait_until(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), "the job's end")
    return slurm.state(job), restarts(slurm, job)


@pytest.fixture
def undisturbed(run_it) -> str:
    return run_it(trainer__epochs=EPOCHS)[1].finished().weights_digest


def assert_as_if_nothing_had_happened(run: Run, log: CommitLog, digest: str) -> None:
    assert log.finished().weights_digest == digest
    assert audit_run(run, log).verdict == "pass"
    for before, after in pairwise(attempts(run)):
        assert after.start_step == before.end_step > before.start_step, "no step was lost"


@pytest.mark.soak
def test_a_drained_node_is_given_back_and_one_that_is_lent_works_without_a_requeue(
    slurm: SlurmCluster, new_tiny_run, undisturbed: str, tmp_path: Path
) -> None:
    run = new_tiny_run(trainer__epochs=EPOCHS)
    log, job = started(run, tmp_path)
    first, second = nodes_of(slurm, job)

    drain(slurm, second)
    requested_s = time.monotonic()
    wait_until(has_started(run, 2), "an attempt without the drained node")
    assert time.monotonic() - requested_s < LOOK_S + 30, "a look, a step, a commit"
    wait_until(lambda: state(slurm, second) == "drained", "the job to give the node up")
    assert nodes_of(slurm, job) == [first]

    lent = join_on_slurm(run)
    wait_until(has_started(run, 3), "an attempt with the node that is lent")
    assert [ended(slurm, text) for text in (job, lent)] == [("COMPLETED", "0")] * 2, words_of(run, job)
    assert [(attempt.world_size, attempt.outcome) for attempt in attempts(run)] == [
        (2, "preempted"), (1, "preempted"), (2, "succeeded"),
    ]  # fmt: skip
    assert "leaves: committed; the run continues" in attempts(run)[0].reason
    assert_as_if_nothing_had_happened(run, log, undisturbed)


@pytest.mark.soak
def test_where_the_first_node_is_drained_another_leads_on_and_slurm_keeps_it_for_the_script(
    slurm: SlurmCluster, new_tiny_run, undisturbed: str, tmp_path: Path
) -> None:
    run = new_tiny_run(trainer__epochs=EPOCHS)
    log, job = started(run, tmp_path)
    first, second = nodes_of(slurm, job)
    drain(slurm, first)
    wait_until(has_started(run, 2), "an attempt that another node leads")
    assert nodes_of(slurm, job) == [first, second]
    assert ended(slurm, job) == ("COMPLETED", "0"), words_of(run, job)
    assert [attempt.world_size for attempt in attempts(run)] == [2, 1]
    assert_as_if_nothing_had_happened(run, log, undisturbed)
    wait_until(lambda: state(slurm, first) == "drained", "its drain")


@pytest.mark.soak
def test_where_all_nodes_are_drained_the_job_goes_back_into_the_queue(
    slurm: SlurmCluster, new_tiny_run, undisturbed: str, tmp_path: Path
) -> None:
    run = new_tiny_run(trainer__epochs=EPOCHS)
    log, job = started(run, tmp_path)
    drain(slurm, "n[1-3]")
    wait_until(lambda: slurm.state(job) == "PENDING", "the requeue")
    resume(slurm)
    assert ended(slurm, job) == ("COMPLETED", "1"), words_of(run, job)
    assert_as_if_nothing_had_happened(run, log, undisturbed)


def supervisor(run: Run, node: int) -> int:
    """The process of a node's supervisor."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = path.read_bytes().decode(errors="replace")
            if f"\0{run.run_id}\0" in text and f"\0--node\0{node}\0" in text:
                return int(path.parent.name)
    raise AssertionError(f"no supervisor of node {node}")


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(item for word in words for item in family(int(word)))]


@pytest.mark.parametrize(
    ("node", "whole_node"),
    [
        pytest.param(0, False, marks=pytest.mark.slow),
        pytest.param(0, True, marks=pytest.mark.soak),
        pytest.param(1, True, marks=pytest.mark.soak),
    ],
)
def test_where_a_node_is_killed_the_lead_or_another_one_the_others_go_on_in_the_same_job(
    slurm: SlurmCluster, new_tiny_run, undisturbed: str, tmp_path: Path, node: int, whole_node: bool
) -> None:
    run = new_tiny_run(trainer__epochs=EPOCHS)
    log, job = started(run, tmp_path, "faults: [{type: slow, step: 1, extra_s: 0.4}]")
    victim = supervisor(run, node)
    for pid in family(victim) if whole_node else [victim]:
        os.kill(pid, signal.SIGKILL)
    killed_s = time.time()
    wait_until(has_started(run, 2), "an attempt on the node that is left")
    assert attempts(run)[1].started_s - killed_s < 15
    assert ended(slurm, job) == ("COMPLETED", "0"), words_of(run, job)
    assert [(attempt.world_size, attempt.outcome) for attempt in attempts(run)] == [(2, "killed"), (1, "succeeded")]
    assert log.finished().weights_digest == undisturbed
    assert audit_run(run, log).verdict == "pass"


SLOWER = "faults: [{type: slow, step: 1, extra_s: 0.4}, {type: slow, attempt: 2, step: 1, extra_s: 0.4}]"


@pytest.mark.soak
def test_where_one_node_was_killed_and_the_other_one_is_stopped_the_job_goes_back_into_the_queue(
    slurm: SlurmCluster, new_tiny_run, undisturbed: str, tmp_path: Path
) -> None:
    run = new_tiny_run(trainer__epochs=EPOCHS)
    log, job = started(run, tmp_path, SLOWER)
    os.kill(supervisor(run, 1), signal.SIGKILL)
    wait_until(has_started(run, 2), "an attempt on the node that is left")
    slurm.call("scancel", "--signal=TERM", job)
    assert ended(slurm, job) == ("COMPLETED", "1"), words_of(run, job)
    assert log.finished().weights_digest == undisturbed
    assert audit_run(run, log).verdict == "pass"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.soak
@pytest.mark.parametrize("node", [0, 1])
def test_where_the_slurmstepd_of_a_node_is_killed_the_job_ends_with_the_run(
    slurm: SlurmCluster, new_tiny_run, undisturbed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: int
) -> None:
    """srun waits for that node for ever."""
    monkeypatch.setattr(slurm_launcher, "FINISHED_LOOK_S", 3)
    run = new_tiny_run(trainer__epochs=EPOCHS)
    log, job = started(run, tmp_path, SLOWER)
    os.kill(parent(parent(supervisor(run, node))), signal.SIGKILL)
    assert ended(slurm, job) == ("COMPLETED", "0"), words_of(run, job)
    assert log.finished().weights_digest == undisturbed
    assert audit_run(run, log).verdict == "pass"
