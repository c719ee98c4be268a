"""`fine_tuning.jobs.*`: a request is an entry of a job's log, and the answer leaves when that is durable."""

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from assay.records.fine_tuning_job import JobCreated
from assay.serving.base_models import BaseModelFile
from assay.serving.ids import new_id
from assay.serving.job import JobState, is_event_id, job_events
from assay.serving.methods import DEFAULT_METHOD, SERVED_METHODS, WHOLE_NUMBERS, ServedMethod
from assay.serving.openai.bodies import (
    MAX_SEED,
    JobBody,
    NoBody,
    ResumeBody,
    parsed,
    read_json,
    request_sha256,
)
from assay.serving.openai.pages import page_of
from assay.serving.openai.place import Place, asked_for, project_of, query_of
from assay.serving.openai.shapes import checkpoint_id, checkpoint_shape, event_shape, job_shape
from assay.serving.refusal import RefusedError, not_found

MAX_PAGE = 100


def job_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])

    @router.post("")
    async def create(request: Request) -> dict[str, Any]:
        """Create a job."""
        query_of(request)
        value, project = await read_json(request), project_of(request)
        created = await run_in_threadpool(_created, place, project, value)
        asked = asked_for(request, created.request_sha256)

        def make(job_id: str) -> JobState:
            return place.jobs.put(created.model_copy(update={"job_id": job_id}))

        return await run_in_threadpool(
            lambda: _shape(place, place.job_repeats.made(asked, created.job_id, make))
        )

    @router.get("")
    def list_jobs(request: Request) -> dict[str, Any]:
        """All jobs, the newest first."""
        query, project = query_of(request, "after", "limit", "metadata"), project_of(request)

        def shown(job_id: str) -> dict[str, Any] | None:
            state = place.jobs.find(job_id, project)
            return _shape(place, state) if state and _has_metadata(state, query) else None

        return page_of(place.jobs.shelf.ids(), shown, query, limit=20, max_limit=MAX_PAGE)

    @router.get("/{job_id}")
    def retrieve(request: Request, job_id: str) -> dict[str, Any]:
        """One job."""
        query_of(request)
        return _shape(place, _found(place, request, job_id))

    @router.get("/{job_id}/events")
    def list_events(request: Request, job_id: str) -> dict[str, Any]:
        """What happened, the newest first."""
        query = query_of(request, "after", "limit")
        if not is_event_id(after := query.get("after", "ftevent-" + "0" * 36)):
            raise not_found("event", after, param="after")
        events = {event.event_id: event for event in job_events(_found(place, request, job_id))}
        return page_of(events, lambda each: event_shape(events[each]), query, limit=20, max_limit=MAX_PAGE)

    @router.get("/{job_id}/checkpoints")
    def list_checkpoints(request: Request, job_id: str) -> dict[str, Any]:
        """Its commits, the newest first."""
        query, state = query_of(request, "after", "limit"), _found(place, request, job_id)
        made = {checkpoint_id(state, each.step): each for each in state.usable_checkpoints}
        return page_of(
            made, lambda each: checkpoint_shape(state, made[each]), query, limit=10, max_limit=MAX_PAGE
        )

    _add_asks(router, place)
    return router


def _add_asks(router: APIRouter, place: Place) -> None:
    """What may be asked of a job that is there."""

    def asks(verb: str, ask: Callable[[str], JobState]) -> None:
        @router.post(f"/{{job_id}}/{verb}", operation_id=verb)
        async def asked(request: Request, job_id: str) -> dict[str, Any]:
            query_of(request)
            parsed(NoBody, await read_json(request))
            await run_in_threadpool(_found, place, request, job_id)
            return await run_in_threadpool(lambda: _shape(place, ask(job_id)))

    asks("cancel", place.jobs.cancel)
    asks("pause", place.jobs.pause)

    @router.post("/{job_id}/resume")
    async def resume(request: Request, job_id: str) -> dict[str, Any]:
        """Go on from the last commit, with a larger budget where one is given."""
        query_of(request)
        budget = parsed(ResumeBody, await read_json(request)).x_assay.budget_device_hours
        await run_in_threadpool(_found, place, request, job_id)
        return await run_in_threadpool(lambda: _shape(place, place.jobs.resume(job_id, budget)))


def _shape(place: Place, state: JobState) -> dict[str, Any]:
    return job_shape(state, place.queue.standing(state))


def _found(place: Place, request: Request, job_id: str) -> JobState:
    state = place.jobs.find(job_id, project_of(request))
    if state is None:
        raise not_found("fine-tuning job", job_id, param="fine_tuning_job_id")
    return state


def _has_metadata(state: JobState, query: Mapping[str, str]) -> bool:
    metadata = state.created.metadata or {}
    wanted = {key[len("metadata[") : -1]: value for key, value in query.items() if key.startswith("metadata[")}
    if query.get("metadata") == "null":
        return state.created.metadata is None
    return all(metadata.get(key) == value for key, value in wanted.items())


def _created(place: Place, project: str, value: Any) -> JobCreated:
    body = parsed(JobBody, value)
    base = place.models.get(body.model)
    if base is None:
        there = ", ".join(place.models)
        raise RefusedError(
            f"There is no base model {body.model!r:.120}; there are: {there}.",
            param="model",
            code="model_not_found",
        )
    method, hyperparameters = _method_of(base, body)
    _check_file(place, project, body.training_file, "training_file")
    if body.validation_file is not None:
        raise RefusedError(
            "A validation file is not read yet: leave it out, and a part of the training file is held out.",
            param="validation_file",
            code="invalid_value",
        )
    now_s = place.clock.now_s()
    return JobCreated(
        job_id=new_id("ftjob", now_s),
        project=project,
        at_s=now_s,
        model=body.model,
        base=base.config.model_dump(mode="json"),
        method=method.name,
        hyperparameters=hyperparameters,
        training_file=body.training_file,
        validation_file=body.validation_file,
        seed=secrets.randbelow(MAX_SEED) if body.seed is None else body.seed,
        suffix=body.suffix,
        metadata=body.metadata,
        request_sha256=request_sha256(project, "fine_tuning.jobs.create", value),
        budget_device_hours=body.x_assay.budget_device_hours,
    )


def _check_file(place: Place, project: str, file_id: str, param: str) -> None:
    file = place.files.find(file_id, project)
    if file is None:
        raise RefusedError(
            f"There is no file {file_id!r:.120} in this project.", param=param, code="file_not_found"
        )
    if file.purpose != "fine-tune":
        raise RefusedError(
            f"File {file_id} was uploaded with purpose '{file.purpose}'; a job reads files of purpose "
            "'fine-tune'. Upload it again with that.",
            param=param,
            code="invalid_file_purpose",
        )


def _method_of(base: BaseModelFile, body: JobBody) -> tuple[ServedMethod, dict[str, Any]]:
    """The method that is asked for, and its hyperparameters as they are asked for."""
    there = list(base.config.methods)
    name = DEFAULT_METHOD if DEFAULT_METHOD in there else there[0]
    asked: dict[str, Any] = {}
    if body.method is not None:
        name = body.method.type
    if name not in there:
        raise RefusedError(
            f"Model '{base.name}' is not trained by {name!r:.60}; it is by: {', '.join(there)}.",
            param="method.type",
            code="method_not_served",
        )
    if body.method is not None:
        asked = _asked_under(name, body.method.model_dump())
    if body.hyperparameters is not None:
        if asked:
            raise RefusedError(
                "hyperparameters are given twice; leave out the old form and keep those of 'method'.",
                param="hyperparameters",
                code="invalid_value",
            )
        asked = body.hyperparameters
    method = SERVED_METHODS[name]
    for key, value in asked.items():
        _check_hyperparameter(method, key, value)
    return method, asked


def _asked_under(name: str, tree: dict[str, Any]) -> dict[str, Any]:
    """What stands under the method's own name; anything beside it is unknown."""
    for key, value in tree.items():
        if key not in ("type", name) and value is not None:
            raise RefusedError(
                f"Unknown parameter: 'method.{key:.80}'.", param=f"method.{key}", code="unknown_parameter"
            )
    inside = tree.get(name) or {}
    if not isinstance(inside, dict) or not isinstance(inside.get("hyperparameters") or {}, dict):
        raise RefusedError(
            f"method.{name} is an object with 'hyperparameters'.", param=f"method.{name}", code="invalid_value"
        )
    if unknown := [key for key in inside if key != "hyperparameters"]:
        param = f"method.{name}.{unknown[0]}"
        raise RefusedError(f"Unknown parameter: '{param:.120}'.", param=param, code="unknown_parameter")
    return dict(inside.get("hyperparameters") or {})


def _check_hyperparameter(method: ServedMethod, key: str, value: Any) -> None:
    param = f"method.{method.name}.hyperparameters.{key}"
    if key not in method.hyperparameters:
        there = ", ".join(method.hyperparameters)
        raise RefusedError(
            f"Unknown parameter: '{param:.160}'; '{method.name}' has: {there}.",
            param=param,
            code="unknown_parameter",
        )
    if value == "auto":
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_whole = is_number and (isinstance(value, int) or value.is_integer())
    if not is_number or not 0 < value < 1e9 or (key in WHOLE_NUMBERS and not is_whole):
        kind = "whole number" if key in WHOLE_NUMBERS else "number"
        raise RefusedError(
            f"Invalid value of '{param}': expected 'auto' or a positive {kind}, not {value!r:.40}.",
            param=param,
            code="invalid_value",
        )
