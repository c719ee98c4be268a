"""Manifests of a Job as a run's launcher makes it, in little, for tests of the stand-in itself."""

from copy import deepcopy
from typing import Any

from kubernetes_cluster.errors import Object

FAILURE_POLICY: Object = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [75]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}},
    ]
}
SUCCESS_POLICY: Object = {"rules": [{"succeededCount": 1}]}
_CONTAINER = {"name": "main", "image": "assay:1", "command": ["sleep", "1000"]}


def job(
    name: str = "run", number: int = 2, *, container: Object | None = None, pod: Object | None = None, **spec: Any
) -> Object:
    """An Indexed Job whose ends by disruption and with 75 are ignored; `spec` replaces fields, None removes them."""
    template = {
        "spec": {"restartPolicy": "Never", "subdomain": name, "containers": [_CONTAINER | (container or {})]}
        | (pod or {})
    }
    fields: Object = {
        "parallelism": number, "completions": number, "completionMode": "Indexed", "backoffLimit": 0,
        "podFailurePolicy": FAILURE_POLICY, "podReplacementPolicy": "Failed", "template": template,
    } | spec  # fmt: skip
    fields = {field: value for field, value in fields.items() if value is not None}
    return deepcopy({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": fields})


def headless_service(name: str = "run") -> Object:
    """The Service that gives a Job's pods their names."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
