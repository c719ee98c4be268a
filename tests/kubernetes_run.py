"""A run on the stand-in of a Kubernetes cluster: its image, its volume, and what a user's machine knows of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from assay.launchers.kubernetes.job import job_name
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from kubernetes_cluster.cluster import KubernetesCluster
from kubernetes_cluster.errors import Object
from kubernetes_cluster.kubelet import Image, checkout_image

IMAGE, CLAIM, ACCOUNT, WORKER = "assay:1", "assay", "assay", "assay-worker"
MANIFESTS = Path(__file__).parents[1] / "kubernetes"
"""What a user applies before the first run."""


@contextmanager
def cluster_with_assay(
    folder: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, **options: object
) -> Iterator[KubernetesCluster]:
    """Yield a cluster that this process' environment names; its claim is the folder `shared`."""
    older = folder / "older"
    older.mkdir()
    (older / "assay").write_text("#!/bin/sh\necho 'the leader has another version'\nexit 2\n")
    (older / "assay").chmod(0o755)
    images = {
        IMAGE: checkout_image(),
        "without:1": Image({"PATH": "/usr/bin:/bin"}),
        "older:1": Image({"PATH": f"{older}:/usr/bin:/bin"}),
    }
    volumes = folder / "volumes" / "default"
    volumes.mkdir(parents=True)
    (volumes / CLAIM).symlink_to(shared)
    with KubernetesCluster(folder, images, **options) as cluster:  # type: ignore[arg-type]
        for file in ("storage", "rbac"):
            cluster.create(*yaml.safe_load_all((MANIFESTS / f"{file}.yaml").read_text()))
        # What the worker's service account may do is enough for a launch.
        token = cluster.token_of(WORKER)
        monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig(folder / "kubeconfig", token=token)))
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
