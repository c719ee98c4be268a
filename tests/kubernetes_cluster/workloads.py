"""Keeps the pods of Deployments and StatefulSets: as many as their replicas, and a new one for one that has ended."""

from copy import deepcopy

from kubernetes_cluster.admission import admit_new
from kubernetes_cluster.errors import Object
from kubernetes_cluster.jobs import has_ended
from kubernetes_cluster.kinds import KINDS, POD, Kind
from kubernetes_cluster.store import Store, name_of, namespace_of, owner_uid

RESTART_S = 5.0
"""A pod that ends is replaced after so many seconds, as its containers would be restarted."""


class WorkloadController:
    """Creates pods; it neither updates nor scales them down."""

    def __init__(self, store: Store, version: str) -> None:
        self._store, self._version = store, version
        self._created_s: dict[str, float] = {}

    def sync(self) -> None:
        """Look at all Deployments and StatefulSets once."""
        for kind in (KINDS["deployments"], KINDS["statefulsets"]):
            for workload in self._store.all(kind):
                self._sync(kind, workload)

    def _sync(self, kind: Kind, workload: Object) -> None:
        namespace, uid, now_s = namespace_of(workload), workload["metadata"]["uid"], self._store.clock()
        pods = [pod for pod in self._store.all(POD, namespace) if owner_uid(pod) == uid]
        for pod in filter(has_ended, pods):
            self._store.delete(POD, pod)
        if now_s < self._created_s.get(uid, 0.0) + RESTART_S:
            return
        for number in range(len(pods), workload["spec"].get("replicas", 1)):
            pod = _pod_of(kind, workload, number)
            self._create_claims(workload, pod["metadata"].get("name", ""))
            admitted = admit_new(self._store, POD, namespace, pod, self._version, has_queues=False)
            self._store.create(POD, namespace, admitted)
            self._created_s[uid] = now_s

    def _create_claims(self, workload: Object, pod: str) -> None:
        """Create the claims of a pod of a StatefulSet, which outlive it."""
        kind, namespace = KINDS["persistentvolumeclaims"], namespace_of(workload)
        for claim in workload["spec"].get("volumeClaimTemplates", []):
            name = f"{name_of(claim)}-{pod}"
            if self._store.find(kind, namespace, name) is None:
                self._store.create(kind, namespace, {"metadata": {"name": name}, "spec": claim["spec"]})


def _pod_of(kind: Kind, workload: Object, number: int) -> Object:
    spec = workload["spec"]
    pod: Object = deepcopy(spec["template"])
    owner = {"apiVersion": kind.api_version, "kind": kind.kind, "name": name_of(workload)}
    pod["metadata"]["ownerReferences"] = [owner | {"uid": workload["metadata"]["uid"], "controller": True}]
    if kind.kind == "Deployment":
        pod["metadata"]["generateName"] = f"{name_of(workload)}-"
        return pod
    name = f"{name_of(workload)}-{number}"
    pod["metadata"]["name"] = name
    pod["spec"] |= {"hostname": name, "subdomain": spec["serviceName"]}
    for claim in spec.get("volumeClaimTemplates", []):
        volume = {"name": name_of(claim), "persistentVolumeClaim": {"claimName": f"{name_of(claim)}-{name}"}}
        pod["spec"].setdefault("volumes", []).append(volume)
    return pod
