"""`fine_tuning.jobs.*`: a request becomes a log entry, and its response is sent once that is durable."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request

from assay.records.fine_tuning_job import JobCreated
from assay.serving.api_error import ApiError, not_found
from assay.serving.ids import new_id
from assay.serving.job import JobEvent, JobState, event_cursor, newest_events
from assay.serving.openai.app_state import AppState, connected_retry, project_of
from assay.serving.openai.bodies import MAX_SEED, JobBody, NoBody, ResumeBody, parsed, request_sha256
from assay.serving.openai.method_body import check_recipe, requested_method
from assay.serving.openai.objects import checkpoint_id, checkpoint_object, event_object, job_object
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody, declares
from assay.serving.openai.pages import Order, page_after, page_of, page_of_ids


def job_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/fine_tuning/jobs", tags=["fine-tuning"], dependencies=QUERY_CHECKED)

    @router.post("", openapi_extra=declares(body=JobBody))
    def create(request: Request, body: JsonBody) -> dict[str, Any]:
        """Create a job."""
        created = _created(app, project_of(request), body.json())
        return _shape(app, app.jobs.create_once(created, connected_retry(request)))

    @router.get("", openapi_extra=declares("after", "limit", "metadata"))
    def list_jobs(request: Request) -> dict[str, Any]:
        """List jobs, newest first."""
        query, project = request.query_params, project_of(request)

        def shown(job_id: str) -> dict[str, Any] | None:
            shape = _shown(app, job_id, project)
            return shape if shape is not None and _has_metadata(shape["metadata"], query) else None

        return page_of_ids(app.jobs, project, shown, query)

    @router.get("/{job_id}")
    def retrieve(request: Request, job_id: str) -> dict[str, Any]:
        """Retrieve a job."""
        project = project_of(request)
        return _shown(app, job_id, project) or _shape(app, app.jobs.found(job_id, project))

    @router.get("/{job_id}/events", openapi_extra=declares("after", "limit"))
    def list_events(request: Request, job_id: str) -> dict[str, Any]:
        """List events, newest first."""
        state = app.jobs.found(job_id, project_of(request))

        def items_after(after: str | None, _: Order) -> Iterable[JobEvent]:
            cursor = None if after is None else event_cursor(state, after)
            if after is not None and cursor is None:
                raise not_found("event", after, param="after")
            return newest_events(state, app.jobs.log(job_id).entry, cursor)

        return page_after(items_after, event_object, request.query_params)

    @router.get("/{job_id}/checkpoints", openapi_extra=declares("after", "limit"))
    def list_checkpoints(request: Request, job_id: str) -> dict[str, Any]:
        """List checkpoints, newest first."""
        state = app.jobs.found(job_id, project_of(request))
        shapes = {
            checkpoint_id(state, checkpoint.step): checkpoint_object(state, checkpoint)
            for checkpoint in state.usable_checkpoints
        }
        return page_of(shapes, shapes.get, request.query_params, limit=10)

    def add_action(verb: str, act: Callable[[str], JobState]) -> None:
        @router.post(f"/{{job_id}}/{verb}", openapi_extra=declares(body=NoBody))
        def action(request: Request, job_id: str, body: JsonBody) -> dict[str, Any]:
            body.parsed(NoBody)
            app.jobs.found(job_id, project_of(request))
            return _shape(app, act(job_id))

    add_action("cancel", app.jobs.cancel)
    add_action("pause", app.jobs.pause)

    @router.post("/{job_id}/resume")
    def resume(request: Request, job_id: str, body: JsonBody) -> dict[str, Any]:
        """Continue from the last commit, optionally with a larger budget."""
        budget = body.parsed(ResumeBody).x_assay.budget_device_hours
        app.jobs.found(job_id, project_of(request))
        return _shape(app, app.jobs.resume(job_id, budget))

    return router


def _shown(app: AppState, job_id: str, project: str) -> dict[str, Any] | None:
    """Return a job of the project, or None."""
    if (shape := app.job_table.shape(job_id)) is not None:
        return shape if shape["organization_id"] == project else None
    state = app.jobs.find(job_id, project)
    return None if state is None else _shape(app, state)


def _shape(app: AppState, state: JobState) -> dict[str, Any]:
    return job_object(state, app.queue.status(state))


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
    _check_files(app, project, body)
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


def _check_files(app: AppState, project: str, body: JobBody) -> None:
    """Raise `ApiError` for unusable or equal files. Shared rows are found when the files are read."""
    names = {"training_file": body.training_file, "validation_file": body.validation_file}
    files = [
        app.files.usable(file_id, project, purpose="fine-tune", param=param, users="jobs")
        for param, file_id in names.items()
        if file_id is not None
    ]
    if len({file.sha256 for file in files}) < len(files):
        raise ApiError(
            "The validation file equals the training file, so evaluation would measure memorization. "
            "Omit it to hold out a part of the training file.",
            param="validation_file",
            code="invalid_validation_file",
        )
