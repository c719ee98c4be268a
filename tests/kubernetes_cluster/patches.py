"""The three kinds of patches that a real API server takes from small clients."""

from copy import deepcopy
from typing import Any

from kubernetes_cluster.errors import ApiError, Object, bad_request

MERGE, STRATEGIC, JSON = (
    "application/merge-patch+json", "application/strategic-merge-patch+json", "application/json-patch+json",
)  # fmt: skip


def patched(current: Object, patch: Any, content_type: str) -> Object:
    """Return the object with the patch applied; `current` stays as it is."""
    if content_type in (MERGE, STRATEGIC):
        if not isinstance(patch, dict):
            raise bad_request("a merge patch is an object")
        merged: Object = _merged(deepcopy(current), patch, by_name=content_type == STRATEGIC)
        return merged
    if content_type == JSON:
        return _edited(deepcopy(current), patch)
    raise ApiError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {content_type}")


def _merged(current: Any, patch: Any, *, by_name: bool) -> Any:
    if isinstance(patch, dict):
        result = current if isinstance(current, dict) else {}
        for field, value in patch.items():
            if value is None:
                result.pop(field, None)
            else:
                result[field] = _merged(result.get(field), value, by_name=by_name)
        return result
    if by_name and isinstance(patch, list) and all(isinstance(part, dict) and "name" in part for part in patch):
        parts = {part["name"]: part for part in current or []}
        return list(
            (parts | {part["name"]: _merged(parts.get(part["name"]), part, by_name=True) for part in patch}).values()
        )
    return patch


def _edited(current: Object, operations: list[Object]) -> Object:
    for operation in operations:
        *parents, last = (_unescaped(part) for part in operation["path"].split("/")[1:])
        branch: Any = current
        try:
            for part in parents:
                branch = branch[int(part)] if isinstance(branch, list) else branch[part]
            _edit(branch, last, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"the server rejected our request due to an error in our request: {operation['path']}: {error!r}"
            raise ApiError(422, "Invalid", message) from error
    return current


def _edit(branch: Any, last: str, operation: Object) -> None:
    key: Any = last
    if isinstance(branch, list):
        key = len(branch) if last == "-" else int(last)
    match operation["op"]:
        case "add" if isinstance(branch, list):
            branch.insert(key, operation["value"])
        case "add":
            branch[key] = operation["value"]
        case "replace":
            branch[key]  # raises if there is none
            branch[key] = operation["value"]
        case "remove":
            del branch[key]
        case "test":
            if branch[key] != operation["value"]:
                raise ValueError(f"testing value {operation['path']} failed")
        case other:
            raise bad_request(f"unknown operation {other}")


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
