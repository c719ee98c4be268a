"""Reads `kubectl get pods -o json`: ended pods with their node and images.

The unit is the pod's owner without digits, because pods of one job fail together.
"""

import re
from typing import Any

from assay.base.errors import DataError
from assay.triage.attempts.columns import Columns, columns_of, join_values


def pod_columns(source: str, items: list[Any]) -> Columns:
    """Return the pods in phase Failed or Succeeded."""
    rows = [_row(pod) for pod in items if _phase(pod) in ("Failed", "Succeeded")]
    if not rows and not any(_phase(pod) for pod in items):
        raise DataError(f"{source}: none of its items is a pod. Expected: kubectl get pods -o json.")
    return columns_of(
        rows, source, failed="failed", at="at", unit="unit", factors=("host", "image", "namespace", "owner")
    )


def _phase(pod: Any) -> str:
    return str(_part(pod, "status").get("phase", ""))


def _row(pod: Any) -> dict[str, str | None]:
    metadata, spec, status = (_part(pod, key) for key in ("metadata", "spec", "status"))
    owners = metadata.get("ownerReferences") or [{}]
    owner = str(_of(owners[0], "name") or metadata.get("generateName") or metadata.get("name", ""))
    containers = spec.get("containers") or []
    namespace = str(metadata.get("namespace", ""))
    return {
        "failed": str(int(status.get("phase") == "Failed")),
        "at": str(status.get("startTime") or metadata.get("creationTimestamp") or ""),
        "unit": f"{namespace} {re.sub(r'[0-9]+', '#', owner)}",
        "host": str(spec.get("nodeName") or ""),
        "image": join_values([str(_of(container, "image") or "") for container in containers]),
        "namespace": namespace,
        "owner": owner,
    }


def _part(pod: Any, key: str) -> dict[str, Any]:
    found = pod.get(key) if isinstance(pod, dict) else None
    return found if isinstance(found, dict) else {}


def _of(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
