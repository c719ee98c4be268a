"""`fine_tuning.checkpoints.permissions.*`: a project lets others ask a model that it made, or a checkpoint."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from assay.records.checkpoint_permission import PermissionGranted
from assay.serving.engines.sources import named_model
from assay.serving.openai.bodies import parsed, read_json
from assay.serving.openai.declared import takes
from assay.serving.openai.pages import listed, page_of
from assay.serving.openai.place import Place, asker_of, project_of, query_of
from assay.serving.refusal import RefusedError, not_found
from assay.serving.retention import Weights

_ORDERS = {"ascending": "asc", "descending": "desc"}


class PermissionsBody(BaseModel):
    """`permissions.create`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    project_ids: list[str] = Field(min_length=1, max_length=100)


def permission_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/fine_tuning/checkpoints/{name}/permissions", tags=["fine-tuning"])

    @router.post("", openapi_extra=takes(body=PermissionsBody))
    async def create(request: Request, name: str) -> dict[str, Any]:
        """Let projects ask it."""
        query_of(request)
        project = project_of(request)
        weights = await run_in_threadpool(_own_weights, place, name, project)
        body = parsed(PermissionsBody, await read_json(request))

        def granted() -> list[PermissionGranted]:
            for place_of, each in enumerate(body.project_ids):
                _check_project(place, each, project, f"project_ids.{place_of}")
            projects = list(dict.fromkeys(body.project_ids))
            return place.permissions.grant(name, projects, by=asker_of(request), weights=weights)

        found = await run_in_threadpool(granted)
        return listed([_shape(each) for each in found], has_more=False)

    @router.get("", openapi_extra=takes("after", "limit", "order", "project_id"))
    def list_permissions(request: Request, name: str) -> dict[str, Any]:
        """Who may, the newest first."""
        query = dict(query_of(request))
        _own_weights(place, name, project_of(request))
        order = query.get("order", "descending")
        if order not in _ORDERS:
            raise RefusedError(
                f"order is 'ascending' or 'descending', not {order!r:.40}.", param="order", code="invalid_value"
            )
        of_project = query.get("project_id")
        there = {
            each.permission_id: _shape(each)
            for each in place.permissions.of(name)
            if of_project in (None, each.project)
        }
        return page_of(there, there.get, {**query, "order": _ORDERS[order]}, limit=10, max_limit=100)

    @router.delete("/{permission_id}")
    def delete(request: Request, name: str, permission_id: str) -> dict[str, Any]:
        """Let who has it ask no more."""
        query_of(request)
        weights = _own_weights(place, name, project_of(request))
        if not place.permissions.revoke(name, permission_id, by=asker_of(request), weights=weights):
            raise not_found("permission", permission_id, param="permission_id")
        return {"id": permission_id, "object": "checkpoint.permission", "deleted": True}

    return router


def _own_weights(place: Place, name: str, project: str) -> Weights:
    """Those of the project's own model; nobody shares on what is shared with him."""
    if name in place.models:
        raise RefusedError(
            f"{name:.160} is a base model, which every project may ask.",
            param="fine_tuned_model_checkpoint",
            code="invalid_value",
        )
    found = named_model(name, place.models, place.jobs, project)
    if found is None:
        raise not_found("checkpoint", name, param="fine_tuned_model_checkpoint")
    return place.keeper.of(name, found.source.run_id, found.source.step)


def _check_project(place: Place, project: str, own: str, param: str) -> None:
    there = place.projects.find(project)
    if there is None or there.archived is not None:
        raise RefusedError(
            f"There is no project {project!r:.120}, or it is archived.", param=param, code="project_not_found"
        )
    if project == own:
        raise RefusedError("It is this project's own: it may ask it.", param=param, code="invalid_value")


def _shape(granted: PermissionGranted) -> dict[str, Any]:
    """`PermissionCreateResponse`."""
    return {
        "id": granted.permission_id,
        "object": "checkpoint.permission",
        "created_at": int(granted.at_s),
        "project_id": granted.project,
    }
