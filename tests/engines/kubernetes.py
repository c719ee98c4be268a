"""The stand-in of a Kubernetes cluster, whose pods are processes: one a node, and one node more than a run needs."""

import json
from pathlib import Path

from assay.launchers.kubernetes.job import KubernetesConfig, job_name
from assay.launchers.kubernetes.launcher import KubernetesLauncher, resize
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.home import Home
from engines.engine import Engine, StartedRun, wait_until
from kubernetes_cluster.cluster import KubernetesCluster
from kubernetes_cluster.errors import Object
from kubernetes_cluster.store import holds
from kubernetes_run import options_of, pods_that_run

LISTED = ("pods", "services", "events")
MOST_PODS = 4
"""Two, and their replacements after one event; more would be a storm."""


class Kubernetes(Engine):
    """A run is a Job of two pods."""

    SIZES = (2, 1, 2)

    def __init__(self, cluster: KubernetesCluster, shared: Path) -> None:
        """`shared`: what all pods mount."""
        self._cluster, self._shared = cluster, shared

    def launcher(self, *, nodes: int = 1, options: tuple[str, ...] = (), **config: object) -> KubernetesLauncher:
        return KubernetesLauncher(
            Home.from_environment(), KubernetesConfig(**options_of(self._shared, nodes=nodes, **config)), options
        )

    def park(self, run: Run) -> Launch:
        return self.launcher(image="none:1").start(run, world_size=1)

    def output(self, started: StartedRun) -> str:
        files = self._cluster.folder.glob(f"default_{job_name(started.run)}-*.log")
        return "".join(file.read_text(errors="replace") for file in files)

    def lose(self, started: StartedRun, index: int) -> None:
        self._cluster.kill_node(self._pod(started, index)["spec"]["nodeName"])

    def resize(self, started: StartedRun, number: int) -> None:
        resize(started.launch, number)

    def drain(self, started: StartedRun, index: int) -> None:
        self._cluster.evict(self._pod(started, index))
        wait_until(lambda: len(started.attempts()) > 1, "an attempt without it")

    def suspend(self, started: StartedRun) -> None:
        self._cluster.suspend(job_name(started.run))
        wait_until(lambda: not pods_that_run(self._cluster, started.run), "the pods to leave")

    def resume(self, started: StartedRun) -> None:
        self._cluster.suspend(job_name(started.run), suspended=False)

    def num_jobs(self, run: Run) -> int:
        return len(self._cluster.request("GET", "/apis/batch/v1/namespaces/default/jobs")["items"])

    def listings(self, started: StartedRun) -> str:
        paths = ("/apis/batch/v1/namespaces/default/jobs", *(f"/api/v1/namespaces/default/{kind}" for kind in LISTED))
        return "\n".join([*(json.dumps(self._cluster.request("GET", path)) for path in paths), self.output(started)])

    def assert_ended_well(self, started: StartedRun) -> None:
        job = self._cluster.job(job_name(started.run))
        assert holds(job, "SuccessCriteriaMet") and not holds(job, "Failed")
        assert job["status"].get("failed", 0) == 0, "no end that an operator causes counts as a failure"
        assert self._cluster.num_pods_created(job_name(started.run)) <= MOST_PODS

    def _pod(self, started: StartedRun, index: int) -> Object:
        running = pods_that_run(self._cluster, started.run)
        return next(pod for pod in running if pod["spec"]["hostname"].endswith(f"-{index}"))
