"""`models.*`: base models, models and checkpoints of jobs, and models shared by other projects."""

from typing import Any

from fastapi import APIRouter, Request

from assay.serving.api_error import ApiError, not_found
from assay.serving.engines.sources import NamedModel, named_model
from assay.serving.ids import job_of_model
from assay.serving.openai.app_state import AppState, project_of
from assay.serving.openai.objects import model_object
from assay.serving.openai.openapi import QUERY_CHECKED


def model_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/models", tags=["models"], dependencies=QUERY_CHECKED)

    @router.get("")
    def list_models(request: Request) -> dict[str, Any]:
        """List base models, models of jobs, and checkpoints that still exist."""
        found = app.names.all(project_of(request))
        return {"object": "list", "data": [_shape(model) for model in found]}

    @router.get("/{name:path}")
    def retrieve(request: Request, name: str) -> dict[str, Any]:
        """Retrieve a model."""
        found = app.names.find(name, project_of(request))
        if found is None:
            raise not_found("model", name, param="model")
        return _shape(found)

    @router.delete("/{name:path}")
    def delete(request: Request, name: str) -> dict[str, Any]:
        """Delete a job's model and its checkpoints."""
        project = project_of(request)
        found = named_model(name, app.models, app.jobs, project)
        if found is None and app.names.find(name, project) is not None:
            raise ApiError(
                f"{name:.160} belongs to another project, which shares it. Only its owner can delete it.",
                param="model",
                code="invalid_value",
            )
        if found is None:
            raise not_found("model", name, param="model")
        job_id = job_of_model(name)
        if job_id is None or found.is_checkpoint:
            hint = (
                "Delete the job's model; its checkpoints are deleted with it."
                if found.is_checkpoint
                else "It is a base model, a file in the server's '--models' folder."
            )
            raise ApiError(f"{name:.160} cannot be deleted. {hint}", param="model", code="invalid_value")
        app.jobs.delete_model(job_id)
        return {"id": name, "object": "model", "deleted": True}

    return router


def _shape(model: NamedModel) -> dict[str, Any]:
    return model_object(model.name, model.created_s, model.owned_by)
