"""`models.*`: base models, models that jobs made, every checkpoint of them, and what other projects share."""

from typing import Any

from fastapi import APIRouter, Request

from assay.serving.engines.sources import NamedModel, named_model
from assay.serving.ids import job_of_model
from assay.serving.openai.place import Place, project_of, query_of
from assay.serving.openai.shapes import model_shape
from assay.serving.refusal import RefusedError, not_found


def model_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/models", tags=["models"])

    @router.get("")
    def list_models(request: Request) -> dict[str, Any]:
        """Base models, and what jobs made: finished models, and the checkpoints that their runs still have."""
        query_of(request)
        found = place.names.all(project_of(request))
        return {"object": "list", "data": [_shape(each) for each in found]}

    @router.get("/{name:path}")
    def retrieve(request: Request, name: str) -> dict[str, Any]:
        """One model, by the name that a job, a checkpoint or the list says."""
        query_of(request)
        found = place.names.find(name, project_of(request))
        if found is None:
            raise not_found("model", name, param="model")
        return _shape(found)

    @router.delete("/{name:path}")
    def delete(request: Request, name: str) -> dict[str, Any]:
        """Let the model of a finished job answer nobody any more, nor its checkpoints."""
        query_of(request)
        project = project_of(request)
        found = named_model(name, place.models, place.jobs, project)
        if found is None and place.names.find(name, project) is not None:
            raise RefusedError(
                f"{name:.160} is shared by another project, whose it is: only that deletes it.",
                param="model",
                code="invalid_value",
            )
        if found is None:
            raise not_found("model", name, param="model")
        job_id = job_of_model(name)
        if job_id is None or found.is_checkpoint:
            cure = (
                "Delete the model that its job made: its checkpoints go with it."
                if found.is_checkpoint
                else "It is a file of the server's '--models' folder."
            )
            raise RefusedError(f"{name:.160} cannot be deleted. {cure}", param="model", code="invalid_value")
        place.jobs.delete_model(job_id)
        return {"id": name, "object": "model", "deleted": True}

    return router


def _shape(model: NamedModel) -> dict[str, Any]:
    return model_shape(model.name, model.made_s, model.owned_by)
