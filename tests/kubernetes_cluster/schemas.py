"""Strict decoding by the published schemas of a Kubernetes version: names unknown fields and wrong types.

The schemas are those that the package `kubernetes-validate` ships.
"""

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

from kubernetes_cluster.errors import Object, bad_request
from kubernetes_cluster.kinds import Kind

_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list,
}  # fmt: skip
_JSON_TYPES = {str: "string", bool: "bool", int: "number", float: "number", dict: "object", list: "array"}


def decode(kind: Kind, manifest: Object, version: str, *, field_validation: str) -> list[str]:
    """Check an object against the schema of its kind; return warnings.

    Raises 400 on a wrong type, and on unknown or required fields if `field_validation` is Strict. If it is Warn,
    unknown fields are dropped and named in the warnings, if Ignore, they are dropped.
    """
    problems: list[str] = []
    title = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
    package = "io.k8s.api." + {"": "core", "rbac.authorization.k8s.io": "rbac"}.get(
        kind.group, kind.group.partition(".")[0]
    )
    _check(f"{package}.{kind.version}.{kind.kind}", manifest, "", version, problems, title)
    if problems and field_validation == "Strict":
        raise bad_request(f"{title}: strict decoding error: {', '.join(problems)}")
    return problems if field_validation == "Warn" else []


def _check(name: str, value: Any, path: str, version: str, problems: list[str], title: str) -> None:
    """Check a value by the definition of that name; drop what is unknown."""
    _check_by(_definitions(version)[name], value, path, version, problems, f"{title}|{name.rpartition('.')[2]}")


def _check_by(schema: Object, value: Any, path: str, version: str, problems: list[str], title: str) -> None:
    if value is None:
        return
    if "$ref" in schema:
        _check(schema["$ref"].rpartition("/")[2], value, path, version, problems, title.partition("|")[0])
        return
    types = [
        text for option in schema.get("oneOf", [schema]) for text in _names(option.get("type", [])) if text != "null"
    ]
    if types and not any(_is(value, text) for text in types):
        title, _, struct = title.partition("|")
        raise bad_request(
            f"{title}: json: cannot unmarshal {_JSON_TYPES[type(value)]} into Go struct field {struct}.{path} of type "
            f"{schema.get('format', types[0])}"
        )
    if isinstance(value, list):
        for index, element in enumerate(value):
            _check_by(schema.get("items", {}), element, f"{path}[{index}]", version, problems, title)
    elif isinstance(value, dict):
        _check_fields(schema, value, path, version, problems, title)


def _check_fields(schema: Object, value: Object, path: str, version: str, problems: list[str], title: str) -> None:
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    for field in list(value):
        where = f"{path}.{field}" if path else field
        if field in known:
            _check_by(known[field], value[field], where, version, problems, title)
        elif isinstance(others, dict):
            _check_by(others, value[field], where, version, problems, title)
        elif others is False:
            problems.append(f'unknown field "{where}"')
            del value[field]


def _names(types: str | list[str]) -> list[str]:
    return [types] if isinstance(types, str) else types


def _is(value: Any, type_name: str) -> bool:
    if isinstance(value, bool):
        return type_name == "boolean"
    return isinstance(value, _PYTHON_TYPES[type_name])


@cache
def _definitions(version: str) -> Object:
    package = importlib.util.find_spec("kubernetes_validate")
    assert package is not None and package.origin is not None
    schemas = Path(package.origin).parent / "kubernetes-json-schema"
    definitions: Object = json.loads((schemas / f"v{version}.0-local-strict" / "_definitions.json").read_text())[
        "$defs"
    ]
    return definitions
