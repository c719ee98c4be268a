"""The kinds of objects that the stand-in serves."""

from typing import NamedTuple


class Kind(NamedTuple):
    """A resource of the API."""

    resource: str
    kind: str
    group: str = ""
    version: str = "v1"
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As in a manifest's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As in messages: `jobs.batch`, `pods`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


_RBAC = "rbac.authorization.k8s.io"
KINDS = {
    kind.resource: kind
    for kind in (
        Kind("namespaces", "Namespace", is_namespaced=False),
        Kind("nodes", "Node", is_namespaced=False),
        Kind("pods", "Pod"),
        Kind("services", "Service"),
        Kind("configmaps", "ConfigMap"),
        Kind("secrets", "Secret"),
        Kind("serviceaccounts", "ServiceAccount"),
        Kind("persistentvolumeclaims", "PersistentVolumeClaim"),
        Kind("resourcequotas", "ResourceQuota"),
        Kind("events", "Event"),
        Kind("jobs", "Job", "batch"),
        Kind("deployments", "Deployment", "apps"),
        Kind("statefulsets", "StatefulSet", "apps"),
        Kind("leases", "Lease", "coordination.k8s.io"),
        Kind("roles", "Role", _RBAC),
        Kind("rolebindings", "RoleBinding", _RBAC),
        Kind("clusterroles", "ClusterRole", _RBAC, is_namespaced=False),
        Kind("clusterrolebindings", "ClusterRoleBinding", _RBAC, is_namespaced=False),
    )
}

POD, JOB, NODE, SERVICE = (KINDS[resource] for resource in ("pods", "jobs", "nodes", "services"))
EVENT, QUOTA, NAMESPACE = (KINDS[resource] for resource in ("events", "resourcequotas", "namespaces"))


def kind_of(api_version: str, name: str) -> Kind | None:
    """Return the kind with this `apiVersion` and `kind`."""
    return next((kind for kind in KINDS.values() if (kind.api_version, kind.kind) == (api_version, name)), None)
