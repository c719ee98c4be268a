"""What a request to the API asks for, read from its path and query."""

from typing import NamedTuple

from kubernetes_cluster.errors import ApiError, Object, bad_request
from kubernetes_cluster.kinds import KINDS, Kind

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Target(NamedTuple):
    """The object or collection that a path names."""

    kind: Kind
    namespace: str
    name: str
    subresource: str


def target_of(path: str) -> Target:
    """Return what a path names; raises 404 for what is not served."""
    unknown = ApiError(404, "NotFound", "the server could not find the requested resource")
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else ("/".join(parts[1:2]), parts[3:])
    version = "".join(parts[1:2] if parts[0] == "api" else parts[2:3])
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    kind = KINDS.get(rest[0]) if rest else None
    if kind is None or (kind.group, kind.version) != (group, version) or parts[0] not in ("api", "apis"):
        raise unknown
    name, subresource = (*rest[1:3], "", "")[:2]
    if name and kind.is_namespaced and not namespace:
        raise unknown
    return Target(kind, namespace, name, subresource)


def verb_of(method: str, target: Target, query: dict[str, str]) -> str:
    """Return the verb that roles allow."""
    if method == "GET":
        if query.get("watch") in ("1", "true"):
            return "watch"
        return "get" if target.name else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    return _VERBS[method]


def is_selected(found: Object, query: dict[str, str]) -> bool:
    """Whether the labels and fields of an object are those that a list asks for."""
    labels = found["metadata"].get("labels", {})
    return all(_matches(term, labels) for term in _terms(query.get("labelSelector", ""))) and all(
        _matches(term, {term.partition("=")[0].rstrip("!"): _field(found, term)})
        for term in _terms(query.get("fieldSelector", ""))
    )


def _terms(selector: str) -> list[str]:
    return [term.strip() for term in selector.split(",") if term.strip()]


def _matches(term: str, values: dict[str, str]) -> bool:
    if " in " in term:
        raise bad_request(f"the stand-in knows no sets in selectors: {term}")
    name, equals, value = term.replace("==", "=").partition("=")
    if name.endswith("!"):
        return values.get(name[:-1]) != value
    if not equals:
        return name not in values if name.startswith("!") else name in values
    return values.get(name) == value


def _field(found: Object, term: str) -> str:
    value: object = found
    for part in term.partition("=")[0].rstrip("!").split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return str(value)
