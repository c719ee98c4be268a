"""Kueue in small: Jobs with a queue's label are suspended until there is room for all their pods."""

from kubernetes_cluster.admission import QUEUE_LABEL
from kubernetes_cluster.errors import Object
from kubernetes_cluster.jobs import is_finished
from kubernetes_cluster.kinds import JOB
from kubernetes_cluster.store import Store


class Queue:
    """A quota of pods. A Job that does not fit waits, suspended; one that the quota no longer holds is suspended."""

    def __init__(self, store: Store, num_slots: int) -> None:
        self._store = store
        self.num_slots = num_slots

    def sync(self) -> None:
        """Suspend and resume Jobs, the oldest first."""
        free = self.num_slots
        for job in self._store.all(JOB):
            if QUEUE_LABEL not in job["metadata"].get("labels", {}) or is_finished(job):
                continue
            wanted = min(job["spec"]["parallelism"], job["spec"].get("completions", job["spec"]["parallelism"]))
            fits = wanted <= free
            free -= wanted if fits else 0
            if job["spec"]["suspend"] is fits:
                self._suspend(job, suspended=not fits)

    def _suspend(self, job: Object, *, suspended: bool) -> None:
        with self._store.editing(JOB, job):
            job["spec"]["suspend"] = suspended
