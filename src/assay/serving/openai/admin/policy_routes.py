"""What a project may: hold devices for so long in a month, and ask or train these models."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from assay.records.project import ModelPermissionsSet
from assay.serving.admin.projects import ProjectState
from assay.serving.openai.admin.bodies import ModelPermissionsBody, SpendLimitBody
from assay.serving.openai.admin.shapes import limit_shape
from assay.serving.openai.bodies import parsed, read_json
from assay.serving.openai.declared import takes
from assay.serving.openai.place import Place, asker_of, query_of
from assay.serving.queue.limits import MonthOfProject
from assay.serving.refusal import RefusedError, not_found


def policy_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter()
    _add_limits(router, place)
    _add_models(router, place)
    return router


def found_project(place: Place, project_id: str) -> ProjectState:
    """A project, archived or not."""
    state = place.projects.find(project_id)
    if state is None:
        raise nowhere("project", project_id, "project_id")
    return state


def nowhere(what: str, name: str, param: str) -> RefusedError:
    """There is none in the whole organization."""
    return RefusedError(f"There is no {what} {name!r:.120}.", status=404, param=param, code="not_found")


def active_project(place: Place, project_id: str) -> ProjectState:
    """A project that is not archived."""
    state = found_project(place, project_id)
    if state.archived is not None:
        raise RefusedError(
            f"Project {project_id} is archived, for good. Create another.",
            param="project_id",
            code="project_archived",
        )
    return state


def _add_limits(router: APIRouter, place: Place) -> None:
    def month_of(project_id: str) -> MonthOfProject:
        found_project(place, project_id)
        month = place.limits.of(project_id, [])
        if month is None:
            raise not_found("spend limit of project", project_id, param="project_id")
        return month

    def shown(month: MonthOfProject) -> dict[str, Any]:
        return limit_shape(month.limit_device_s / 3600, month.device_s)

    @router.get("/projects/{project_id}/spend_limit")
    def retrieve_limit(request: Request, project_id: str) -> dict[str, Any]:
        """What its jobs may hold devices for in a month."""
        query_of(request)
        return shown(month_of(project_id))

    @router.post("/projects/{project_id}/spend_limit", openapi_extra=takes(body=SpendLimitBody))
    async def update_limit(request: Request, project_id: str) -> dict[str, Any]:
        """Set it."""
        query_of(request)
        body, by = parsed(SpendLimitBody, await read_json(request)), asker_of(request)

        def limited() -> dict[str, Any]:
            active_project(place, project_id)
            place.projects.limit(project_id, body.threshold_amount / 100, by=by)
            return shown(month_of(project_id))

        return await run_in_threadpool(limited)

    @router.delete("/projects/{project_id}/spend_limit")
    def delete_limit(request: Request, project_id: str) -> dict[str, Any]:
        """For as long as they like."""
        query_of(request)
        month_of(project_id)
        place.projects.limit(project_id, None, by=asker_of(request))
        return {"object": "project.spend_limit.deleted", "deleted": True}


def _add_models(router: APIRouter, place: Place) -> None:
    @router.get("/projects/{project_id}/model_permissions")
    def retrieve_models(request: Request, project_id: str) -> dict[str, Any]:
        """Which models it may ask and train; all where nobody said so."""
        query_of(request)
        models = found_project(place, project_id).models
        if models is None:
            raise not_found("model permissions of project", project_id, param="project_id")
        return _models_shape(models)

    @router.post("/projects/{project_id}/model_permissions", openapi_extra=takes(body=ModelPermissionsBody))
    async def update_models(request: Request, project_id: str) -> dict[str, Any]:
        """Say which: these alone, or all but these."""
        query_of(request)
        body, by = parsed(ModelPermissionsBody, await read_json(request)), asker_of(request)

        def permitted() -> dict[str, Any]:
            active_project(place, project_id)
            ids = tuple(dict.fromkeys(body.model_ids))
            state = place.projects.permit(project_id, body.mode, ids, by=by)
            assert state.models is not None
            return _models_shape(state.models)

        return await run_in_threadpool(permitted)

    @router.delete("/projects/{project_id}/model_permissions")
    def delete_models(request: Request, project_id: str) -> dict[str, Any]:
        """All of them, as where nobody said so."""
        query_of(request)
        if found_project(place, project_id).models is None:
            raise not_found("model permissions of project", project_id, param="project_id")
        place.projects.permit(project_id, None, (), by=asker_of(request))
        return {"object": "project.model_permissions.deleted", "deleted": True}


def _models_shape(models: ModelPermissionsSet) -> dict[str, Any]:
    """`ProjectModelPermissions`."""
    return {"object": "project.model_permissions", "mode": models.mode, "model_ids": list(models.model_ids)}
