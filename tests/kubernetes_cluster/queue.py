"""Kueue in small: Jobs with a queue's label are suspended until there is room for all their pods.

An elastic Job may grow without being suspended: its further pods have a scheduling gate until all of them fit.
"""

from kubernetes_cluster.admission import ELASTIC, QUEUE_LABEL
from kubernetes_cluster.errors import Object
from kubernetes_cluster.jobs import has_ended, is_finished
from kubernetes_cluster.kinds import JOB, POD
from kubernetes_cluster.store import Store, namespace_of, owner_uid


class Queue:
    """A quota of pods. A Job that does not fit waits, suspended; one that the quota no longer holds is suspended."""

    def __init__(self, store: Store, num_slots: int) -> None:
        self._store = store
        self.num_slots = num_slots
        self._admitted: dict[str, int] = {}

    def sync(self) -> None:
        """Suspend and resume Jobs, the oldest first, and open the gates of pods that fit."""
        free = self.num_slots
        for job in self._store.all(JOB):
            if QUEUE_LABEL not in job["metadata"].get("labels", {}) or is_finished(job):
                continue
            uid, requested = job["metadata"]["uid"], job["spec"]["parallelism"]
            held = 0 if job["spec"]["suspend"] else self._admitted.get(uid, 0)
            if requested <= free or held > requested:
                held = requested
            if held > free or (requested > held and not is_elastic(job)):
                held = 0
            self._admitted[uid] = held
            free -= held
            if job["spec"]["suspend"] is (held > 0):
                with self._store.editing(JOB, job):
                    job["spec"]["suspend"] = held == 0
            self._open_gates(job, held)

    def _open_gates(self, job: Object, number: int) -> None:
        pods = [
            pod
            for pod in self._store.all(POD, namespace_of(job))
            if owner_uid(pod) == job["metadata"]["uid"] and not has_ended(pod)
        ]
        gated = [pod for pod in pods if pod["spec"].get("schedulingGates")]
        for pod in gated[: max(0, number - len(pods) + len(gated))]:
            with self._store.editing(POD, pod):
                del pod["spec"]["schedulingGates"]


def is_elastic(job: Object) -> bool:
    """Whether the Job may change its size in its queue."""
    return bool(job["metadata"].get("annotations", {}).get(ELASTIC) == "true")
