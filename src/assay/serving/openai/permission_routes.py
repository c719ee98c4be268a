"""`fine_tuning.checkpoints.permissions.*`: share a job's model or checkpoint with other projects."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from assay.records.checkpoint_permission import PermissionGranted
from assay.serving.api_error import ApiError, not_found
from assay.serving.engines.sources import named_model
from assay.serving.openai.app_state import AppState, key_id_of, project_of
from assay.serving.openai.bodies import StrictBody
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody, declares
from assay.serving.openai.pages import listed, page_of
from assay.serving.retention import Weights

_ORDERS = {"ascending": "asc", "descending": "desc"}


class PermissionsBody(StrictBody):
    """`permissions.create`."""

    project_ids: list[str] = Field(min_length=1, max_length=100)


def permission_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(
        prefix="/fine_tuning/checkpoints/{name}/permissions", tags=["fine-tuning"], dependencies=QUERY_CHECKED
    )

    @router.post("", openapi_extra=declares(body=PermissionsBody))
    def create(request: Request, name: str, body: JsonBody) -> dict[str, Any]:
        """Share the model with projects."""
        project = project_of(request)
        weights = _own_weights(app, name, project)
        project_ids = body.parsed(PermissionsBody).project_ids
        for index, project_id in enumerate(project_ids):
            _check_project(app, project_id, project, f"project_ids.{index}")
        projects = list(dict.fromkeys(project_ids))
        found = app.permissions.grant(name, projects, by=key_id_of(request), weights=weights)
        return listed([_shape(permission) for permission in found], has_more=False)

    @router.get("", openapi_extra=declares("after", "limit", "order", "project_id"))
    def list_permissions(request: Request, name: str) -> dict[str, Any]:
        """List permissions, newest first."""
        query = request.query_params
        _own_weights(app, name, project_of(request))
        order = query.get("order", "descending")
        if order not in _ORDERS:
            raise ApiError(
                f"order must be 'ascending' or 'descending', not {order!r:.40}.", param="order", code="invalid_value"
            )
        of_project = query.get("project_id")
        permissions = {
            permission.permission_id: _shape(permission)
            for permission in app.permissions.of(name)
            if of_project in (None, permission.project)
        }
        return page_of(permissions, permissions.get, {**query, "order": _ORDERS[order]}, limit=10)

    @router.delete("/{permission_id}")
    def delete(request: Request, name: str, permission_id: str) -> dict[str, Any]:
        """Revoke a permission."""
        weights = _own_weights(app, name, project_of(request))
        if not app.permissions.revoke(name, permission_id, by=key_id_of(request), weights=weights):
            raise not_found("permission", permission_id, param="permission_id")
        return {"id": permission_id, "object": "checkpoint.permission", "deleted": True}

    return router


def _own_weights(app: AppState, name: str, project: str) -> Weights:
    """Return the weights of the project's own model. Models shared with it cannot be shared further."""
    if name in app.models:
        raise ApiError(
            f"{name:.160} is a base model, which every project may query.",
            param="fine_tuned_model_checkpoint",
            code="invalid_value",
        )
    found = named_model(name, app.models, app.jobs, project)
    if found is None:
        raise not_found("checkpoint", name, param="fine_tuned_model_checkpoint")
    return app.retention.of(name, found.source.run_id, found.source.step)


def _check_project(app: AppState, project: str, own: str, param: str) -> None:
    state = app.projects.find(project)
    if state is None or state.archived is not None:
        raise ApiError(
            f"There is no project {project!r:.120}, or it is archived.", param=param, code="project_not_found"
        )
    if project == own:
        raise ApiError(
            "The model belongs to this project, which needs no permission.", param=param, code="invalid_value"
        )


def _shape(granted: PermissionGranted) -> dict[str, Any]:
    """`PermissionCreateResponse`."""
    return {
        "id": granted.permission_id,
        "object": "checkpoint.permission",
        "created_at": int(granted.at_s),
        "project_id": granted.project,
    }
