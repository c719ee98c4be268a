"""A cluster without processes and with a clock that a test sets: to test the rules of its controllers."""

from pathlib import Path

from kubernetes_cluster.errors import Object
from kubernetes_cluster.garbage import GarbageCollector
from kubernetes_cluster.jobs import JobController, has_ended
from kubernetes_cluster.kinds import NODE, POD
from kubernetes_cluster.nodes import Nodes, new_node
from kubernetes_cluster.operator import Operator
from kubernetes_cluster.pod_status import report_end, report_running
from kubernetes_cluster.server import Api
from kubernetes_cluster.store import Store, name_of, namespace_of
from kubernetes_cluster.timing import Timing

_ROUNDS = 4
"""So often controllers look, so that each has seen what the others did."""


class ControlPlane(Operator):
    """Pods start at once and end when a test says so."""

    def __init__(self, num_nodes: int = 3, version: str = "1.36") -> None:
        self.now_s = 1_800_000_000.0
        self.store, timing = Store(lambda: self.now_s), Timing()
        super().__init__(self.store, Api(self.store, lambda pod: Path("/dev/null"), version, has_queues=False))
        self.nodes = Nodes(self.store, timing)
        self._jobs = JobController(self.store, timing, version)
        self._garbage = GarbageCollector(self.store, timing)
        self.create_namespace("default")
        for number in range(1, num_nodes + 1):
            self.store.create(NODE, "", new_node(f"node-{number}", {"pods": "4", "cpu": "8", "memory": "8Gi"}))

    def after(self, seconds: float) -> None:
        """Let time pass, then let all controllers look."""
        self.now_s += seconds
        for _ in range(_ROUNDS):
            self._jobs.sync()
            self._garbage.sync()
            self.nodes.sync()
            for pod in self.store.all(POD):
                self._start_or_confirm(pod)

    def end(self, pod: Object, code: int, reason: str = "") -> None:
        """The pod's process ends."""
        report_end(self.store, self.store.get(POD, namespace_of(pod), name_of(pod)), code, reason)
        self.after(0)

    def indexes(self, job: str) -> list[int]:
        """The indexes of the pods that run and are not about to end."""
        pods = [pod for pod in self.pods(job) if not has_ended(pod) and "deletionTimestamp" not in pod["metadata"]]
        return sorted(int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]) for pod in pods)

    def _start_or_confirm(self, pod: Object) -> None:
        node = pod["spec"].get("nodeName")
        if node is None or self.nodes.is_silent(node):
            return
        if has_ended(pod) and "deletionTimestamp" in pod["metadata"]:
            self.store.delete(POD, pod)
        elif pod["status"]["phase"] == "Pending" and "deletionTimestamp" not in pod["metadata"]:
            pod["status"]["podIP"] = "127.0.0.1"
            report_running(self.store, pod)
