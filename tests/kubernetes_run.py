"""A run on the stand-in of a Kubernetes cluster: its image, its volume, and what a user's machine knows of it."""

import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.launchers.kubernetes.job import job_name
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from kubernetes_cluster.cluster import KubernetesCluster
from kubernetes_cluster.errors import Object
from kubernetes_cluster.kubelet import Image

IMAGE, CLAIM, ACCOUNT = "assay:1", "runs", "assay"
ROLE: list[Object] = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "patch"]},
    {"apiGroups": [""], "resources": ["pods", "resourcequotas"], "verbs": ["list"]},
]
"""What the pods' service account may do; as in kubernetes/rbac.yaml."""


@contextmanager
def cluster_with_assay(
    folder: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, **options: object
) -> Iterator[KubernetesCluster]:
    """Yield a cluster that this process' environment names; its claim `runs` is the folder `shared`."""
    variables = {"PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    images = {IMAGE: Image({**variables, "HOME": str(folder)}), "without:1": Image({"PATH": "/usr/bin:/bin"})}
    volumes = folder / "volumes" / "default"
    volumes.mkdir(parents=True)
    (volumes / CLAIM).symlink_to(shared)
    with KubernetesCluster(folder, images, **options) as cluster:  # type: ignore[arg-type]
        claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        named = {"metadata": {"name": ACCOUNT}}
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "default"}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT}
        rbac = "rbac.authorization.k8s.io/v1"
        cluster.create(
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM}, "spec": claim},
            {"apiVersion": "v1", "kind": "ServiceAccount", **named},
            {"apiVersion": rbac, "kind": "Role", "rules": ROLE, **named},
            {"apiVersion": rbac, "kind": "RoleBinding", "subjects": [subject], "roleRef": reference, **named},
        )
        monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig(folder / "kubeconfig")))
        yield cluster


def options_of(shared: Path, *, nodes: int = 2, **others: object) -> dict[str, object]:
    """Options of a launch in that cluster."""
    return {"image": IMAGE, "claim": f"{CLAIM}:{shared}", "nodes": nodes, "cpu": 1.0, "grace_s": 60, **others}


def pods_that_run(cluster: KubernetesCluster, run: Run) -> list[Object]:
    """The run's pods that run."""
    return [pod for pod in cluster.pods(job_name(run)) if pod["status"]["phase"] == "Running"]


def attempts_of(run: Run) -> list[Attempt]:
    """The run's attempts so far."""
    return list(saved_attempts(Path(run.run_dir)))
