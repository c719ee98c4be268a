"""What every operation says of itself in `openapi.json`: its query, its body, and the errors it answers with.

    @router.get("/files", openapi_extra=takes("after", "limit"))     what a request may hold
    described(app)                                                   the document, errors and keys added

A query is declared at its route and nowhere else: what is not declared is refused (`query_of`).
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

_TEXT = {"type": "string"}
_QUERY: Mapping[str, Mapping[str, Any]] = {
    "after": {"schema": _TEXT, "description": "The id behind which the page begins."},
    "limit": {"schema": {"type": "integer", "minimum": 1}, "description": "The most things of a page."},
    "order": {
        "schema": {"enum": ["asc", "desc"]},
        "description": "By age; the newest first by default.",
    },
    "purpose": {"schema": _TEXT, "description": "Files of this purpose only."},
    "metadata": {
        "schema": {"type": "object", "additionalProperties": _TEXT},
        "style": "deepObject",
        "explode": True,
        "description": "Things with these values only.",
    },
}
"""What is known of parameters that many lists take; others are texts."""
_ERRORS = {
    "400": "Something about the request is wrong: `param` names it.",
    "401": "The key is missing, wrong, revoked or expired.",
    "403": "The key may not do this, or the server is not asked by its own name.",
    "404": "There is no such thing in the project.",
    "503": "The store is full or away; nothing was half made, and `retry-after` says when to ask again.",
}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def takes(
    *query: str, body: type[BaseModel] | None = None, form: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a route declares: the names of its query; the class of its JSON, or the schema of its form."""
    declared: dict[str, Any] = {
        "parameters": [{"name": name, "in": "query", **_QUERY.get(name, {"schema": _TEXT})} for name in query]
    }
    if body is not None:
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        declared["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    if form is not None:
        content = {"multipart/form-data": {"schema": dict(form)}}
        declared["requestBody"] = {"required": True, "content": content}
    return declared


def declared_query(request: Request) -> tuple[str, ...]:
    """The names that the request's route declares."""
    extra = getattr(request.scope.get("route"), "openapi_extra", None) or {}
    return tuple(each["name"] for each in extra.get("parameters", ()) if each["in"] == "query")


def described(app: FastAPI) -> dict[str, Any]:
    """The document of all its routes."""
    document = get_openapi(title=app.title, version=version("assay"), routes=app.routes)
    components = document.setdefault("components", {})
    schemas = {"Error": _ERROR_SCHEMA}
    for operations in document["paths"].values():
        for operation in operations.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                schemas.update(media["schema"].pop("$defs", {}))
            operation["responses"].pop("422", None)  # what cannot be read is a 400
            for status, meaning in _ERRORS.items():
                content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
                operation["responses"].setdefault(status, {"description": meaning, "content": content})
    components["schemas"] = schemas
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    return document


def operation_name(route: Any) -> str:
    """An operation's id: `GET /v1/files`."""
    return f"{min(route.methods)} {route.path_format}"
