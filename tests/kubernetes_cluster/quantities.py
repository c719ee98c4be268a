"""Kubernetes' quantities: `500m`, `2`, `4Gi`."""

from fractions import Fraction
from typing import Any

from kubernetes_cluster.errors import Object

_UNITS: dict[str, Fraction | int] = {"m": Fraction(1, 1000), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "": 1}


def quantity(text: Any) -> Fraction:
    """Return the number; raises `ValueError` for what is none."""
    number = str(text).rstrip("mkMGTi")
    unit = str(text)[len(number) :]
    if unit not in _UNITS:
        raise ValueError(f"unknown unit in {text!r}")
    return Fraction(number) * _UNITS[unit]


def requests_of(pod_spec: Object) -> dict[str, Fraction]:
    """What a pod's containers request together; a limit without a request counts as one."""
    total = {"pods": Fraction(1)}
    for container in pod_spec["containers"]:
        resources = container.get("resources", {})
        for name, text in (resources.get("limits", {}) | resources.get("requests", {})).items():
            total[name] = total.get(name, Fraction(0)) + quantity(text)
    return total


def limits_of(pod_spec: Object) -> dict[str, Fraction]:
    """What a pod's containers are limited to together."""
    total: dict[str, Fraction] = {}
    for container in pod_spec["containers"]:
        for name, text in container.get("resources", {}).get("limits", {}).items():
            total[name] = total.get(name, Fraction(0)) + quantity(text)
    return total
