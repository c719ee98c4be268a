"""Deletion of what belongs to others: dependents of deleted objects, and Jobs whose time after their end is over."""

from kubernetes_cluster.errors import Object
from kubernetes_cluster.jobs import grace_of, is_finished
from kubernetes_cluster.kinds import JOB, NAMESPACE, POD, Kind
from kubernetes_cluster.store import Store, name_of
from kubernetes_cluster.timing import Timing

_FOREGROUND = "foregroundDeletion"


def delete_object(store: Store, kind: Kind, current: Object, *, policy: str, grace_s: float | None) -> None:
    """Delete an object as a client asks for it.

    `policy` is Background (dependents are deleted later), Foreground (before) or Orphan (they stay).
    """
    if kind is POD:
        store.delete(POD, current, grace_s=grace_of(current) if grace_s is None else grace_s)
        return
    if policy == "Orphan":
        for dependent_kind, dependent in _dependents(store, current):
            with store.editing(dependent_kind, dependent):
                owners = dependent["metadata"]["ownerReferences"]
                owners[:] = [owner for owner in owners if owner["uid"] != current["metadata"]["uid"]]
    elif policy == "Foreground":
        with store.editing(kind, current):
            current["metadata"].setdefault("finalizers", []).append(_FOREGROUND)
    if kind is NAMESPACE:
        for inner_kind, inner in store.everything():
            if inner["metadata"].get("namespace") == name_of(current):
                delete_object(store, inner_kind, inner, policy="Background", grace_s=0)
    store.delete(kind, current)


class GarbageCollector:
    """Deletes dependents and finished Jobs."""

    def __init__(self, store: Store, timing: Timing) -> None:
        self._store, self._timing = store, timing
        self._finished_s: dict[str, float] = {}

    def sync(self) -> None:
        """Look at all objects once."""
        everything = self._store.everything()
        uids = {found["metadata"]["uid"] for _, found in everything}
        for kind, found in everything:
            owners = found["metadata"].get("ownerReferences", [])
            if owners and not any(owner["uid"] in uids for owner in owners):
                delete_object(self._store, kind, found, policy="Background", grace_s=None)
            if _FOREGROUND in found["metadata"].get("finalizers", []):
                dependents = _dependents(self._store, found)
                for dependent_kind, dependent in dependents:
                    delete_object(self._store, dependent_kind, dependent, policy="Background", grace_s=None)
                if not dependents:
                    self._store.remove_finalizer(kind, found, _FOREGROUND)
        for job in self._store.all(JOB):
            self._delete_after_its_time(job)

    def _delete_after_its_time(self, job: Object) -> None:
        lifetime_s = job["spec"].get("ttlSecondsAfterFinished")
        if lifetime_s is not None and is_finished(job):
            ended_s = self._finished_s.setdefault(job["metadata"]["uid"], self._store.clock())
            if self._store.clock() >= ended_s + self._timing.scale * lifetime_s:
                delete_object(self._store, JOB, job, policy="Background", grace_s=None)


def _dependents(store: Store, owner: Object) -> list[tuple[Kind, Object]]:
    uid = owner["metadata"]["uid"]
    return [
        (kind, found)
        for kind, found in store.everything()
        if any(reference["uid"] == uid for reference in found["metadata"].get("ownerReferences", []))
    ]
