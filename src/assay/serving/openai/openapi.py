"""Declarations of routes for `openapi.json`: query, body and error responses.

    @router.get("/files", openapi_extra=takes("after", "limit"))     declares the query of a route
    described(app)                                                   returns the document

Query parameters are declared only at the route; undeclared ones are rejected (`QUERY_CHECKED`).
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from assay.serving.api_error import ApiError
from assay.serving.openai.bodies import RawBody

_TEXT = {"type": "string"}
_QUERY: Mapping[str, Mapping[str, Any]] = {
    "after": {"schema": _TEXT, "description": "Cursor: the id of the last item of the previous page."},
    "limit": {"schema": {"type": "integer", "minimum": 1}, "description": "Largest number of items."},
    "order": {"schema": {"enum": ["asc", "desc"]}, "description": "Order by age; newest first by default."},
    "purpose": {"schema": _TEXT, "description": "Only files of this purpose."},
    "metadata": {
        "schema": {"type": "object", "additionalProperties": _TEXT},
        "style": "deepObject",
        "explode": True,
        "description": "Only items with these values.",
    },
}
"""Schemas of common parameters; others are strings."""
_ERRORS = {
    "400": "The request is invalid; `param` names the parameter.",
    "401": "The key is missing, wrong, revoked or expired.",
    "403": "The key lacks a scope, or the Host header is not allowed.",
    "404": "There is no such resource in the project.",
    "503": "The store is full or unavailable. Nothing was half created; retry after `retry-after` seconds.",
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


def declares(*query: str, body: type[BaseModel] | None = None, form: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the declaration of a route: query names, and the class of its JSON body or the schema of its form."""
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
    """Return the query parameters that the request's route declares."""
    extra = getattr(request.scope.get("route"), "openapi_extra", None) or {}
    return tuple(parameter["name"] for parameter in extra.get("parameters", ()) if parameter["in"] == "query")


def described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document."""
    release = version("assay").partition("+")[0]  # without the commit of the build
    document = get_openapi(title=app.title, version=release, routes=app.routes)
    components = document.setdefault("components", {})
    schemas = {"Error": _ERROR_SCHEMA}
    for operations in document["paths"].values():
        for operation in operations.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                schemas.update(media["schema"].pop("$defs", {}))
            operation["responses"].pop("422", None)  # invalid requests are a 400
            for status, meaning in _ERRORS.items():
                content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
                operation["responses"].setdefault(status, {"description": meaning, "content": content})
    components["schemas"] = schemas
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    return document


def operation_name(route: Any) -> str:
    """Return the operation id, such as `GET /v1/files`."""
    return f"{min(route.methods)} {route.path_format}"


async def _read_body(request: Request) -> RawBody:
    return await RawBody.read(request)


JsonBody = Annotated[RawBody, Depends(_read_body)]
"""Parameter of a route with a JSON body."""


async def _check_query(request: Request) -> None:
    """Raise `ApiError` for query parameters that the route does not declare."""
    names = declared_query(request)
    params = request.query_params.multi_items()
    for name, _ in params:
        if sum(name == other for other, _ in params) > 1:
            raise ApiError(f"The parameter '{name:.80}' is given twice.", param=name, code="invalid_value")
        if name not in names and not (name.startswith("metadata[") and "metadata" in names):
            raise ApiError(
                f"Unknown parameter: '{name:.80}'. It is not honoured, so it is rejected, not ignored.",
                param=name,
                code="unknown_parameter",
            )


QUERY_CHECKED = [Depends(_check_query)]
"""Dependencies of a router whose routes read each query parameter once."""
