"""What an administrator does by the API, in few words."""

import json
from typing import Any

from kubernetes_cluster.access import ADMIN
from kubernetes_cluster.errors import Object
from kubernetes_cluster.jobs import index_of
from kubernetes_cluster.kinds import JOB, KINDS, NAMESPACE, POD
from kubernetes_cluster.patches import MERGE
from kubernetes_cluster.server import Api
from kubernetes_cluster.store import Store, name_of, namespace_of, owner_uid


class Operator:
    """Somebody who may do everything; objects come as copies."""

    def __init__(self, store: Store, api: Api) -> None:
        self._store, self._api = store, api

    def create_namespace(self, name: str) -> None:
        """Make a namespace with its default service account."""
        with self._store.lock:
            self._store.create(NAMESPACE, "", {"metadata": {"name": name}})
            self._store.create(KINDS["serviceaccounts"], name, {"metadata": {"name": "default"}})

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """What the API answers; raises `ApiError`."""
        path, _, options = path.partition("?")
        query = dict(part.split("=", 1) for part in options.split("&") if part)
        with self._store.lock:
            response = self._api.respond(ADMIN, method, path, query, body, content_type)
            return response if isinstance(response, str) else json.loads(json.dumps(response))

    def create(self, *manifests: Object, namespace: str = "default") -> None:
        """Create objects, strictly."""
        for manifest in manifests:
            kind = next(kind for kind in KINDS.values() if kind.kind == manifest["kind"])
            prefix = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
            namespace_path = f"/namespaces/{namespace}" if kind.is_namespaced else ""
            copy = json.loads(json.dumps(manifest))
            self.request("POST", f"{prefix}{namespace_path}/{kind.resource}?fieldValidation=Strict", copy)

    def job(self, name: str, namespace: str = "default") -> Object:
        """The Job as it is now."""
        job: Object = self.request("GET", _job_path(name, namespace))
        return job

    def patch_job(self, name: str, spec: Object, namespace: str = "default") -> None:
        """Merge fields into the spec of a Job."""
        self.request("PATCH", _job_path(name, namespace), {"spec": spec}, MERGE)

    def pods(self, job: str, namespace: str = "default", *, index: int | None = None) -> list[Object]:
        """The Job's pods that are there, the oldest first."""
        with self._store.lock:
            uid = self._store.get(JOB, namespace, job)["metadata"]["uid"]
            pods = [pod for pod in self._store.all(POD, namespace) if owner_uid(pod) == uid]
            return [json.loads(json.dumps(pod)) for pod in pods if index in (None, index_of(pod))]

    def num_pods_created(self, job: str, namespace: str = "default") -> int:
        """How many pods the Job has had in all."""
        events = self.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return sum(
            event["count"]
            for event in events
            if event["reason"] == "SuccessfulCreate" and event["involvedObject"]["name"] == job
        )

    def evict(self, pod: Object) -> None:
        """Evict a pod by the API, as a drain does."""
        namespace, name = namespace_of(pod), name_of(pod)
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        self.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)

    def suspend(self, job: str, namespace: str = "default", *, suspended: bool = True) -> None:
        """Suspend or resume a Job, as a queue does."""
        self.patch_job(job, {"suspend": suspended}, namespace)

    def scale(self, job: str, number: int, namespace: str = "default") -> None:
        """Give a Job another number of pods."""
        self.patch_job(job, {"parallelism": number, "completions": number}, namespace)

    def remove_node(self, node: str) -> None:
        """Delete the node's object, as an operator or a cloud does with a dead machine."""
        self.request("DELETE", f"/api/v1/nodes/{node}")


def _job_path(name: str, namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
