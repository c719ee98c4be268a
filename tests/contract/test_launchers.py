"""What every launcher must do: this machine in the background, a real Slurm, a real Ray, a stand-in of Kubernetes."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.launchers.kubernetes.job import KubernetesConfig
from assay.launchers.kubernetes.launcher import KubernetesLauncher
from assay.launchers.launcher import Launcher
from assay.launchers.launches import state_of, stop
from assay.launchers.local import BackgroundLauncher
from assay.launchers.ray.launcher import RayConfig, RayLauncher
from assay.launchers.slurm.launcher import SlurmConfig, SlurmLauncher
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.launches import saved_launches
from assay.store.objects import open_store
from assay.training.audit import audit_run
from kubernetes_cluster.cluster import missing_part
from kubernetes_run import cluster_with_assay, options_of
from slurm_cluster import wait_until


@pytest.fixture
def kubernetes_launcher(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, requires
) -> Iterator[KubernetesLauncher]:
    """A cluster whose pods see this session's folders."""
    missing = missing_part()
    requires("netns", missing is None, missing or "")
    shared, folder = tmp_path_factory.getbasetemp(), tmp_path / "cluster"
    folder.mkdir()
    with cluster_with_assay(folder, shared, monkeypatch):
        yield KubernetesLauncher(Home.from_environment(), KubernetesConfig(**options_of(shared, nodes=1)))


@pytest.fixture(
    params=["background", *(pytest.param(name, marks=pytest.mark.slow) for name in ("slurm", "ray", "kubernetes"))]
)
def launcher(request: pytest.FixtureRequest, new_tiny_run: object, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """`new_tiny_run` first: it says where the home is."""
    if request.param == "background":
        return BackgroundLauncher(Home.from_environment())
    if request.param == "kubernetes":
        launcher: Launcher = request.getfixturevalue("kubernetes_launcher")
        return launcher
    if request.param == "ray":
        cluster = request.getfixturevalue("ray_cluster")
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        cluster.add_nodes(2 - len(cluster.nodes), num_cpus=2)
        return RayLauncher(Home.from_environment(), RayConfig())
    request.getfixturevalue("slurm")
    return SlurmLauncher(Home.from_environment(), SlurmConfig())


def assay(*arguments: str) -> str:
    """What the command prints, in a process of its own."""
    command = [sys.executable, "-c", "from assay.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_run_told_to_stop_commits_and_started_again_ends_with_the_undisturbed_weights(
    launcher: Launcher, new_tiny_run, run_it
) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=4)
    run = new_tiny_run(trainer__epochs=4)
    log = CommitLog(open_store(run.store_url))

    first = launcher.start(run, world_size=2)
    assert saved_launches(run) == [first]
    assert state_of(first) in ("queued", "running")
    wait_until(log.commits, "a first commit")
    assert "asked to commit and stop" in assay("train", "stop", run.run_id)  # anybody may, who has the record
    wait_until(lambda: state_of(first) == "ended", "the run to leave")
    assert "nothing to stop" in assay("train", "stop", run.run_id)
    stop(first)  # what has ended stays so
    assert log.finished() is None
    assert not first.log or "committed" in Path(first.log).read_text()  # on Kubernetes it goes with the pods

    second = launcher.start(run, world_size=1)
    wait_until(lambda: state_of(second) == "ended", "the run to end")
    assert log.finished().weights_digest == undisturbed.finished().weights_digest
    assert audit_run(run, log).verdict == "pass"
    with Home.from_environment().open_ledger() as ledger:
        attempts = ledger.attempts(run.run_id)
        assert ledger.launches(run.run_id) == saved_launches(run) == [first, second]
    assert [(launch.number, launch.world_size) for launch in (first, second)] == [(1, 2), (2, 1)]
    assert [attempt.outcome for attempt in attempts] == ["preempted", "succeeded"]
    assert [attempt.world_size for attempt in attempts] == [2, 1]
