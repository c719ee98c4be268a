"""`fine_tuning.jobs.*`: a request becomes a log entry, and its response is sent once that is durable."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from assay.records.fine_tuning_job import JobCreated
from assay.serving.api_error import ApiError, not_found
from assay.serving.ids import new_id
from assay.serving.job import JobEvent, JobState, event_cursor, newest_events
from assay.serving.openai.app_state import AppState, connected_request, project_of, query_of
from assay.serving.openai.bodies import MAX_SEED, JobBody, NoBody, ResumeBody, parsed, read_json, request_sha256
from assay.serving.openai.method_body import check_recipe, requested_method
from assay.serving.openai.objects import checkpoint_id, checkpoint_object, event_object, job_object
from assay.serving.openai.openapi import declares
from assay.serving.openai.pages import Order, page_after, page_of, page_of_logs

MAX_PAGE = 100


def job_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"])

    @router.post("", openapi_extra=declares(body=JobBody))
    async def create(request: Request) -> dict[str, Any]:
        """Create a job."""
        query_of(request)
        value, project = await read_json(request), project_of(request)
        created = await run_in_threadpool(_created, app, project, value)
        create_request = await connected_request(request, created.request_sha256)

        def make(job_id: str) -> JobState:
            return app.jobs.put(created.model_copy(update={"job_id": job_id}))

        return await run_in_threadpool(
            lambda: _shape(app, app.job_idempotency.create_once(create_request, created.job_id, make))
        )

    @router.get("", openapi_extra=declares("after", "limit", "metadata"))
    def list_jobs(request: Request) -> dict[str, Any]:
        """List jobs, newest first."""
        query, project = query_of(request), project_of(request)

        def shown(job_id: str) -> dict[str, Any] | None:
            shape = _shown(app, job_id, project)
            return shape if shape is not None and _has_metadata(shape["metadata"], query) else None

        return page_of_logs(app.jobs.logs, project, shown, query, limit=20, max_limit=MAX_PAGE)

    @router.get("/{job_id}")
    def retrieve(request: Request, job_id: str) -> dict[str, Any]:
        """Retrieve a job."""
        query_of(request)
        shape = _shown(app, job_id, project_of(request))
        if shape is None:
            raise _not_found(job_id)
        return shape

    @router.get("/{job_id}/events", openapi_extra=declares("after", "limit"))
    def list_events(request: Request, job_id: str) -> dict[str, Any]:
        """List events, newest first."""
        query, state = query_of(request), _found(app, request, job_id)

        def items_after(after: str | None, _: Order) -> Iterable[JobEvent]:
            cursor = None if after is None else event_cursor(state, after)
            if after is not None and cursor is None:
                raise not_found("event", after, param="after")
            return newest_events(state, app.jobs.logs.log(job_id).entry, cursor)

        return page_after(items_after, event_object, query, limit=20, max_limit=MAX_PAGE)

    @router.get("/{job_id}/checkpoints", openapi_extra=declares("after", "limit"))
    def list_checkpoints(request: Request, job_id: str) -> dict[str, Any]:
        """List checkpoints, newest first."""
        query, state = query_of(request), _found(app, request, job_id)
        checkpoints = {checkpoint_id(state, checkpoint.step): checkpoint for checkpoint in state.usable_checkpoints}
        return page_of(
            checkpoints,
            lambda object_id: checkpoint_object(state, checkpoints[object_id]),
            query,
            limit=10,
            max_limit=MAX_PAGE,
        )

    _add_actions(router, app)
    return router


def _add_actions(router: APIRouter, app: AppState) -> None:
    def add_action(verb: str, act: Callable[[str], JobState]) -> None:
        @router.post(f"/{{job_id}}/{verb}", openapi_extra=declares(body=NoBody))
        async def action(request: Request, job_id: str) -> dict[str, Any]:
            query_of(request)
            parsed(NoBody, await read_json(request))
            await run_in_threadpool(_found, app, request, job_id)
            return await run_in_threadpool(lambda: _shape(app, act(job_id)))

    add_action("cancel", app.jobs.cancel)
    add_action("pause", app.jobs.pause)

    @router.post("/{job_id}/resume")
    async def resume(request: Request, job_id: str) -> dict[str, Any]:
        """Continue from the last commit, optionally with a larger budget."""
        query_of(request)
        budget = parsed(ResumeBody, await read_json(request)).x_assay.budget_device_hours
        await run_in_threadpool(_found, app, request, job_id)
        return await run_in_threadpool(lambda: _shape(app, app.jobs.resume(job_id, budget)))


def _shown(app: AppState, job_id: str, project: str) -> dict[str, Any] | None:
    """Return a job of the project, or None."""
    if (shape := app.job_table.shape(job_id)) is not None:
        return shape if shape["organization_id"] == project else None
    state = app.jobs.find(job_id, project)
    return None if state is None else _shape(app, state)


def _shape(app: AppState, state: JobState) -> dict[str, Any]:
    return job_object(state, app.queue.status(state))


def _found(app: AppState, request: Request, job_id: str) -> JobState:
    state = app.jobs.find(job_id, project_of(request))
    if state is None:
        raise _not_found(job_id)
    return state


def _not_found(job_id: str) -> ApiError:
    return not_found("fine-tuning job", job_id, param="fine_tuning_job_id")


def _has_metadata(metadata: Mapping[str, str] | None, query: Mapping[str, str]) -> bool:
    required = {key[len("metadata[") : -1]: value for key, value in query.items() if key.startswith("metadata[")}
    if query.get("metadata") == "null":
        return metadata is None
    return all((metadata or {}).get(key) == value for key, value in required.items())


def _created(app: AppState, project: str, value: Any) -> JobCreated:
    body = parsed(JobBody, value)
    base = app.names.base(body.model, project)
    if base is None:
        names = ", ".join(app.names.bases(project)) or "none"
        raise ApiError(
            f"There is no base model {body.model!r:.120}; available: {names}. The server reads model "
            "files at startup; restart it after adding one.",
            param="model",
            code="model_not_found",
        )
    requested = requested_method(base, body)
    check_recipe(base, requested)
    _check_file(app, project, body.training_file, "training_file")
    if body.validation_file is not None:
        _check_file(app, project, body.validation_file, "validation_file")
        _check_files_differ(app, project, body.training_file, body.validation_file)
    now_s = app.clock.now_s()
    return JobCreated(
        job_id=new_id("ftjob", now_s),
        project=project,
        at_s=now_s,
        model=body.model,
        base=base.config.model_dump(mode="json"),
        method=requested.method.name,
        hyperparameters=requested.hyperparameters,
        grader=requested.grader,
        training_file=body.training_file,
        validation_file=body.validation_file,
        seed=secrets.randbelow(MAX_SEED) if body.seed is None else body.seed,
        suffix=body.suffix,
        metadata=body.metadata,
        request_sha256=request_sha256(project, "fine_tuning.jobs.create", value),
        budget_device_hours=body.x_assay.budget_device_hours,
    )


def _check_file(app: AppState, project: str, file_id: str, param: str) -> None:
    file = app.files.find(file_id, project)
    if file is None:
        raise ApiError(f"There is no file {file_id!r:.120} in this project.", param=param, code="file_not_found")
    if file.purpose != "fine-tune":
        raise ApiError(
            f"File {file_id} has purpose '{file.purpose}'; jobs require purpose "
            "'fine-tune'. Upload it again with this purpose.",
            param=param,
            code="invalid_file_purpose",
        )


def _check_files_differ(app: AppState, project: str, training_file: str, validation_file: str) -> None:
    """Reject equal files. Shared rows are found when the files are read."""
    files = (app.files.find(training_file, project), app.files.find(validation_file, project))
    if len({file.sha256 for file in files if file is not None}) == 1:
        raise ApiError(
            "The validation file equals the training file, so evaluation would measure memorization. "
            "Omit it to hold out a part of the training file.",
            param="validation_file",
            code="invalid_validation_file",
        )
