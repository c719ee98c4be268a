"""Runs on a stand-in of a Kubernetes cluster: start, stop, growth, shrinking, and what a cluster refuses."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.launchers.kubernetes.job import KubernetesConfig, job_name
from assay.launchers.kubernetes.launcher import KubernetesLauncher
from assay.launchers.launches import state_of
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run
from kubernetes_cluster.cluster import KubernetesCluster, missing_part
from kubernetes_run import attempts_of, cluster_with_assay, options_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SLOW = "faults: [{type: slow, step: 1, extra_s: 0.5}, {type: slow, attempt: 2, step: 1, extra_s: 0.5}]"


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all pods mount: the runs of this test and the data of all tests."""
    return tmp_path_factory.getbasetemp()


@pytest.fixture
def cluster(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, requires: Callable[..., None]
) -> Iterator[KubernetesCluster]:
    missing = missing_part()
    requires("kubernetes", missing is None, missing)
    folder = tmp_path / "cluster"
    folder.mkdir()
    with cluster_with_assay(folder, shared, monkeypatch, num_nodes=3) as started:
        yield started


def launcher_of(shared: Path, *train_options: str, **options: object) -> KubernetesLauncher:
    return KubernetesLauncher(Home.from_environment(), KubernetesConfig(**options_of(shared, **options)), train_options)


def log_of(run: Run) -> CommitLog:
    return CommitLog(open_store(run.store_url))


def assert_undisturbed(run: Run, digest: str) -> None:
    log = log_of(run)
    finished = log.finished()
    assert finished is not None
    assert finished.weights_digest == digest
    assert audit_run(run, log).verdict == "pass"


def test_a_run_on_two_pods_ends_with_the_undisturbed_weights(
    cluster: KubernetesCluster, shared: Path, new_tiny_run: Callable[..., Run], undisturbed: str
) -> None:
    run = new_tiny_run()
    launch = launcher_of(shared).start(run, world_size=2)
    assert state_of(launch) == "queued"
    cluster.wait_until(lambda: state_of(launch) == "ended", "the run to end", timeout_s=180)
    assert_undisturbed(run, undisturbed)
    assert [attempt.world_size for attempt in attempts_of(run)] == [2]
    assert cluster.num_pods_made(job_name(run)) == 2
