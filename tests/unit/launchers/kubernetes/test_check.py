"""What a cluster lacks is said before a run is created, and a Job that waits says why in the cluster's words."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from assay.base.errors import ConfigError
from assay.launchers.kubernetes import launcher
from assay.launchers.kubernetes.client import Object
from assay.launchers.kubernetes.job import KubernetesConfig
from assay.launchers.kubernetes.launcher import check, kill, pending_reason, state, stop
from assay.records.launch import Launch
from kubernetes_cluster.cluster import KubernetesCluster
from kubernetes_cluster.manifests import job

Started = Callable[..., KubernetesCluster]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Start a cluster of no nodes with the claim `runs`, and name it in the environment."""
    running: list[KubernetesCluster] = []

    def started(**options: Any) -> KubernetesCluster:
        cluster = KubernetesCluster(tmp_path, **{"num_nodes": 0, **options})
        running.append(cluster.__enter__())
        claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        cluster.create(
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "runs"}, "spec": claim}
        )
        monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig(tmp_path / "config")))
        return cluster

    yield started
    for cluster in running:
        cluster.__exit__(None, None, None)


def config(**options: Any) -> KubernetesConfig:
    return KubernetesConfig(**{"image": "assay:1", "claim": "runs:/assay", **options})


@contextmanager
def refused(message: str) -> Iterator[None]:
    with pytest.raises(ConfigError, match=message):
        yield


def test_a_cluster_that_has_all_is_accepted(start: Started) -> None:
    start()
    assert not check(config(), world_size=1)


def test_what_is_not_there_is_named(start: Started) -> None:
    start()
    with refused(r"has no namespace 'team': kubectl create namespace team"):
        check(config(namespace="team"), world_size=1)
    with refused(r"--claim other: namespace 'default' has no such object: kubectl get persistentvolumeclaims"):
        check(config(claim="other:/assay"), world_size=1)
    with refused(r"--service-account assay: .*kubectl get serviceaccounts"):
        check(config(service_account="assay"), world_size=1)
    with refused(r"--nodes 3 --workers 2"):
        check(config(nodes=3), world_size=2)
    with refused(r"--secret keys: .*kubectl get secrets"):
        check(config(secret=("keys",)), world_size=1)
    with refused(r"--as trainjob needs --create-only or --dry-run"):
        check(config(as_="trainjob"), world_size=1)
    [note] = check(config(queue="team"), world_size=1)
    assert "has no Kueue" in note


def test_a_user_without_rights_learns_which_and_whom_to_ask(start: Started, tmp_path: Path, monkeypatch) -> None:
    cluster = start()
    token = cluster.token_of("default")
    monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig(tmp_path / "mine", token=token)))
    missing = "create services, patch services, list pods in namespace 'default'"
    with refused(rf"you may not create jobs, get jobs, .*{missing}.*rbac.yaml"):
        check(config(), world_size=1)


@pytest.mark.parametrize("version", ["1.30", "1.28"])
def test_an_older_cluster_is_told_what_it_lacks(start: Started, version: str) -> None:
    start(version=version)
    with refused(rf"is Kubernetes {version}, and a run needs 1.31: before, Jobs have no spec.successPolicy"):
        check(config(), world_size=1)


@pytest.mark.parametrize(
    ("options", "container", "spec", "reason"),
    [
        ({}, {}, {}, r"Unschedulable: 0/0 nodes are available"),
        ({"num_nodes": 1}, {"image": "none:1"}, {}, r"(ErrImagePull|ImagePullBackOff): .*none:1"),
        ({}, {}, {"suspend": True}, r"the Job is suspended \(spec.suspend\)"),
    ],
)  # fmt: skip
def test_why_nothing_runs_is_told_in_the_clusters_words(
    start: Started, options: dict, container: dict, spec: dict, reason: str
) -> None:
    cluster = start(**options)
    cluster.create(job(container=container, **spec))
    reason = waited(cluster, reason)
    assert reason


def test_the_state_of_a_job_is_that_of_its_pods_and_unknown_on_another_cluster(start: Started) -> None:
    cluster = start()
    cluster.create(job())
    launch = launch_of(cluster.job("run"), cluster)
    uid = launch.process.partition(" ")[0]
    assert state(launch) == "queued"
    assert state(launch.model_copy(update={"process": f"another {cluster.url}"})) == "ended"
    gone = launch.model_copy(update={"job": "default/gone"})
    assert state(gone) == "ended"
    assert state(gone.model_copy(update={"process": f"{uid} https://other:6443"})) == "elsewhere"
    cluster.add_node("node")
    stop(launch.model_copy(update={"process": f"another {cluster.url}"}))
    assert "deletionTimestamp" not in cluster.job("run")["metadata"], "a later Job of that name is another's"
    kill(launch)
    cluster.wait_until(lambda: state(launch) == "ended", "the Job to go", timeout_s=10)


def test_a_quota_is_named(start: Started) -> None:
    cluster = start()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": {"pods": "0"}}}
    cluster.create(quota, job())
    waited(cluster, r"exceeded quota: team")


def waited(cluster: KubernetesCluster, pattern: str) -> str:
    import re

    launch = launch_of(cluster.job("run"), cluster)
    found: list[str] = []

    def is_named() -> bool:
        found.append(pending_reason(launch))
        return re.search(pattern, found[-1]) is not None

    cluster.wait_until(is_named, f"{pattern}; reason was {found[-1:]}", timeout_s=10)
    return found[-1]


def launch_of(created: Object, cluster: KubernetesCluster) -> Launch:
    return Launch(
        run_id="r", number=1, launcher="kubernetes", job="default/run", host="h", started_by="me", started_s=0.0,
        process=f"{created['metadata']['uid']} {cluster.url}", world_size=1, log="",
    )  # fmt: skip


class Kueue:
    """An API server that serves these paths of one version of Kueue."""

    def __init__(self, objects: dict[str, Object]) -> None:
        self._objects = {"/apis/kueue.x-k8s.io/v1beta1": {}, **objects}

    def find(self, path: str) -> Object | None:
        return self._objects.get(path.partition("?")[0])


QUEUES = "/apis/kueue.x-k8s.io/v1beta1/namespaces/team"


def test_a_queue_is_looked_for_in_every_version_of_kueue() -> None:
    served: Any = Kueue({f"{QUEUES}/localqueues/gpus": {"kind": "LocalQueue"}})
    assert launcher._queue_warnings(served, "team", "gpus") == []
    with refused(r"--queue cpus: namespace 'team' has no such LocalQueue"):
        launcher._queue_warnings(served, "team", "cpus")


def test_a_job_that_a_queue_holds_says_why_in_the_queues_words() -> None:
    message = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu"
    workload = {"status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": message}]}}
    held = job(suspend=True)
    held["metadata"] |= {"uid": "1", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
    served: Any = Kueue({f"{QUEUES}/workloads": {"items": [workload]}})
    assert list(launcher._suspension(served, held)) == [f"suspended by queue gpus: {message}"]
    assert list(launcher._suspension(Kueue({}), held)) == ["suspended by queue gpus: it waits for quota"]  # type: ignore[arg-type]
