"""`fine_tuning.jobs.*`: a request is an entry of a job's log, and the answer leaves when that is durable."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from assay.records.fine_tuning_job import JobCreated
from assay.serving.ids import new_id
from assay.serving.job import JobEvent, JobState, event_place, newest_events
from assay.serving.openai.bodies import (
    MAX_SEED,
    JobBody,
    NoBody,
    ResumeBody,
    parsed,
    read_json,
    request_sha256,
)
from assay.serving.openai.declared import takes
from assay.serving.openai.method_body import asked_method, check_recipe
from assay.serving.openai.pages import Order, page_behind, page_of, page_of_shelf
from assay.serving.openai.place import Place, project_of, query_of, still_asked_for
from assay.serving.openai.shapes import checkpoint_id, checkpoint_shape, event_shape, job_shape
from assay.serving.refusal import RefusedError, not_found

MAX_PAGE = 100


def job_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])

    @router.post("", openapi_extra=takes(body=JobBody))
    async def create(request: Request) -> dict[str, Any]:
        """Create a job."""
        query_of(request)
        value, project = await read_json(request), project_of(request)
        created = await run_in_threadpool(_created, place, project, value)
        asked = await still_asked_for(request, created.request_sha256)

        def make(job_id: str) -> JobState:
            return place.jobs.put(created.model_copy(update={"job_id": job_id}))

        return await run_in_threadpool(
            lambda: _shape(place, place.job_repeats.made(asked, created.job_id, make))
        )

    @router.get("", openapi_extra=takes("after", "limit", "metadata"))
    def list_jobs(request: Request) -> dict[str, Any]:
        """All jobs, the newest first."""
        query, project = query_of(request), project_of(request)

        def shown(job_id: str) -> dict[str, Any] | None:
            shape = _shown(place, job_id, project)
            return shape if shape is not None and _has_metadata(shape["metadata"], query) else None

        return page_of_shelf(place.jobs.shelf, project, shown, query, limit=20, max_limit=MAX_PAGE)

    @router.get("/{job_id}")
    def retrieve(request: Request, job_id: str) -> dict[str, Any]:
        """One job."""
        query_of(request)
        shape = _shown(place, job_id, project_of(request))
        if shape is None:
            raise _not_found(job_id)
        return shape

    @router.get("/{job_id}/events", openapi_extra=takes("after", "limit"))
    def list_events(request: Request, job_id: str) -> dict[str, Any]:
        """What happened, the newest first."""
        query, state = query_of(request), _found(place, request, job_id)

        def behind(after: str | None, _: Order) -> Iterable[JobEvent]:
            cursor = None if after is None else event_place(state, after)
            if after is not None and cursor is None:
                raise not_found("event", after, param="after")
            return newest_events(state, place.jobs.shelf.log(job_id).entry, cursor)

        return page_behind(behind, event_shape, query, limit=20, max_limit=MAX_PAGE)

    @router.get("/{job_id}/checkpoints", openapi_extra=takes("after", "limit"))
    def list_checkpoints(request: Request, job_id: str) -> dict[str, Any]:
        """Its commits, the newest first."""
        query, state = query_of(request), _found(place, request, job_id)
        made = {checkpoint_id(state, checkpoint.step): checkpoint for checkpoint in state.usable_checkpoints}
        return page_of(
            made, lambda each: checkpoint_shape(state, made[each]), query, limit=10, max_limit=MAX_PAGE
        )

    _add_asks(router, place)
    return router


def _add_asks(router: APIRouter, place: Place) -> None:
    """What may be asked of a job that is there."""

    def asks(verb: str, ask: Callable[[str], JobState]) -> None:
        @router.post(f"/{{job_id}}/{verb}", openapi_extra=takes(body=NoBody))
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


def _shown(place: Place, job_id: str, project: str) -> dict[str, Any] | None:
    """A job of the project's."""
    if (shape := place.job_table.shape(job_id)) is not None:
        return shape if shape["organization_id"] == project else None
    state = place.jobs.find(job_id, project)
    return None if state is None else _shape(place, state)


def _shape(place: Place, state: JobState) -> dict[str, Any]:
    return job_shape(state, place.queue.standing(state))


def _found(place: Place, request: Request, job_id: str) -> JobState:
    state = place.jobs.find(job_id, project_of(request))
    if state is None:
        raise _not_found(job_id)
    return state


def _not_found(job_id: str) -> RefusedError:
    return not_found("fine-tuning job", job_id, param="fine_tuning_job_id")


def _has_metadata(metadata: Mapping[str, str] | None, query: Mapping[str, str]) -> bool:
    wanted = {key[len("metadata[") : -1]: value for key, value in query.items() if key.startswith("metadata[")}
    if query.get("metadata") == "null":
        return metadata is None
    return all((metadata or {}).get(key) == value for key, value in wanted.items())


def _created(place: Place, project: str, value: Any) -> JobCreated:
    body = parsed(JobBody, value)
    base = place.names.base(body.model, project)
    if base is None:
        there = ", ".join(place.names.bases(project)) or "none"
        raise RefusedError(
            f"There is no base model {body.model!r:.120}; there are: {there}. The server reads the models' "
            "files when it starts: for one that came later, start it again.",
            param="model",
            code="model_not_found",
        )
    asked = asked_method(base, body)
    check_recipe(base, asked)
    _check_file(place, project, body.training_file, "training_file")
    if body.validation_file is not None:
        _check_file(place, project, body.validation_file, "validation_file")
        _refuse_one_file_twice(place, project, body.training_file, body.validation_file)
    now_s = place.clock.now_s()
    return JobCreated(
        job_id=new_id("ftjob", now_s),
        project=project,
        at_s=now_s,
        model=body.model,
        base=base.config.model_dump(mode="json"),
        method=asked.method.name,
        hyperparameters=asked.hyperparameters,
        grader=asked.grader,
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


def _refuse_one_file_twice(place: Place, project: str, training_file: str, validation_file: str) -> None:
    """The same bytes cannot be both; a few rows that both have are found when the files are read."""
    both = (place.files.find(training_file, project), place.files.find(validation_file, project))
    if len({file.sha256 for file in both if file is not None}) == 1:
        raise RefusedError(
            "The validation file is the training file: what was learned by heart would count as understood. "
            "Leave it out, and a part of the training file is held out.",
            param="validation_file",
            code="invalid_validation_file",
        )
