"""Policies of a project: its monthly spend limit and its model permissions."""

from typing import Any

from fastapi import APIRouter, Request

from assay.records.project import ModelPermissionsSet
from assay.serving.admin.projects import ProjectState
from assay.serving.api_error import ApiError, not_found
from assay.serving.openai.admin.bodies import ModelPermissionsBody, SpendLimitBody
from assay.serving.openai.admin.objects import limit_object
from assay.serving.openai.app_state import AppState, key_id_of
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody, declares
from assay.serving.queue.limits import MonthOfProject


def policy_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(dependencies=QUERY_CHECKED)
    _add_limits(router, app)
    _add_models(router, app)
    return router


def found_project(app: AppState, project_id: str) -> ProjectState:
    """Return a project, archived or not. Raises `ApiError` if there is none."""
    state = app.projects.find(project_id)
    if state is None:
        raise nowhere("project", project_id, "project_id")
    return state


def nowhere(what: str, name: str, param: str) -> ApiError:
    """404 for the whole organization."""
    return ApiError(f"There is no {what} {name!r:.120}.", status=404, param=param, code="not_found")


def active_project(app: AppState, project_id: str) -> ProjectState:
    """Return a project that is not archived. Raises `ApiError` otherwise."""
    state = found_project(app, project_id)
    if state.archived is not None:
        raise ApiError(
            f"Project {project_id} is archived. Archiving is final; create another project.",
            param="project_id",
            code="project_archived",
        )
    return state


def _add_limits(router: APIRouter, app: AppState) -> None:
    def month_of(project_id: str) -> MonthOfProject:
        found_project(app, project_id)
        month = app.limits.of(project_id, [])
        if month is None:
            raise not_found("spend limit of project", project_id, param="project_id")
        return month

    def shown(month: MonthOfProject) -> dict[str, Any]:
        return limit_object(month.limit_device_s / 3600, month.device_s)

    @router.get("/projects/{project_id}/spend_limit")
    def retrieve_limit(project_id: str) -> dict[str, Any]:
        """Retrieve the monthly spend limit in device-hours."""
        return shown(month_of(project_id))

    @router.post("/projects/{project_id}/spend_limit", openapi_extra=declares(body=SpendLimitBody))
    def update_limit(request: Request, project_id: str, body: JsonBody) -> dict[str, Any]:
        """Set the monthly spend limit."""
        limit = body.parsed(SpendLimitBody)
        active_project(app, project_id)
        app.projects.limit(project_id, limit.threshold_amount / 100, by=key_id_of(request))
        return shown(month_of(project_id))

    @router.delete("/projects/{project_id}/spend_limit")
    def delete_limit(request: Request, project_id: str) -> dict[str, Any]:
        """Remove the spend limit."""
        month_of(project_id)
        app.projects.limit(project_id, None, by=key_id_of(request))
        return {"object": "project.spend_limit.deleted", "deleted": True}


def _add_models(router: APIRouter, app: AppState) -> None:
    @router.get("/projects/{project_id}/model_permissions")
    def retrieve_models(project_id: str) -> dict[str, Any]:
        """Retrieve the models that the project may use; 404 if it may use all."""
        models = found_project(app, project_id).models
        if models is None:
            raise not_found("model permissions of project", project_id, param="project_id")
        return _models_shape(models)

    @router.post("/projects/{project_id}/model_permissions", openapi_extra=declares(body=ModelPermissionsBody))
    def update_models(request: Request, project_id: str, body: JsonBody) -> dict[str, Any]:
        """Allow only these models, or all but these."""
        models = body.parsed(ModelPermissionsBody)
        active_project(app, project_id)
        ids = tuple(dict.fromkeys(models.model_ids))
        state = app.projects.permit(project_id, models.mode, ids, by=key_id_of(request))
        assert state.models is not None
        return _models_shape(state.models)

    @router.delete("/projects/{project_id}/model_permissions")
    def delete_models(request: Request, project_id: str) -> dict[str, Any]:
        """Allow all models."""
        if found_project(app, project_id).models is None:
            raise not_found("model permissions of project", project_id, param="project_id")
        app.projects.permit(project_id, None, (), by=key_id_of(request))
        return {"object": "project.model_permissions.deleted", "deleted": True}


def _models_shape(models: ModelPermissionsSet) -> dict[str, Any]:
    """`ProjectModelPermissions`."""
    return {"object": "project.model_permissions", "mode": models.mode, "model_ids": list(models.model_ids)}
