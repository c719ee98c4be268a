"""`models.*`: the base models that there are, the models that jobs made, and every checkpoint of them."""

from typing import Any

from fastapi import APIRouter, Request

from assay.serving.ids import checkpoint_name, job_of_model
from assay.serving.job import JobState
from assay.serving.openai.place import Place, project_of, query_of
from assay.serving.openai.shapes import model_shape
from assay.serving.refusal import not_found


def model_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/models", tags=["models"])

    @router.get("")
    def list_models(request: Request) -> dict[str, Any]:
        """Base models, and what jobs made; checkpoints are listed by their jobs."""
        query_of(request)
        found = [model_shape(each.name, each.created_s, each.config.owned_by) for each in place.models.values()]
        project = project_of(request)
        for state in place.jobs.with_models(project):
            assert state.succeeded is not None
            found.append(model_shape(state.model, state.succeeded.at_s, project))
        return {"object": "list", "data": found}

    @router.get("/{name:path}")
    def retrieve(request: Request, name: str) -> dict[str, Any]:
        """One model, by the name that a job, a checkpoint or the list says."""
        query_of(request)
        if (base := place.models.get(name)) is not None:
            return model_shape(base.name, base.created_s, base.config.owned_by)
        project = project_of(request)
        job_id = job_of_model(name)
        state = None if job_id is None else place.jobs.find(job_id, project)
        if state is None or (made_s := _made_s(state, name)) is None:
            raise not_found("model", name, param="model")
        return model_shape(name, made_s, project)

    return router


def _made_s(state: JobState, name: str) -> float | None:
    """When a job made the model of this name; None where it has not."""
    if state.succeeded is not None and name == state.model:
        return state.succeeded.at_s
    return next(
        (each.at_s for each in state.usable_checkpoints if checkpoint_name(state.model, each.step) == name),
        None,
    )
