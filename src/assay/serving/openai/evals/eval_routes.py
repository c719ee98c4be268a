"""`evals.*`: item schema and testing criteria are validated before an eval is created."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from assay.base.errors import ConfigError
from assay.records.eval_run import EvalCreated
from assay.serving.api_error import ApiError, not_found
from assay.serving.evals.criteria import check_criteria, read_criteria
from assay.serving.evals.evals import EvalState
from assay.serving.evals.item_schema import ItemSchema
from assay.serving.ids import new_id
from assay.serving.openai.app_state import AppState, connected_request, project_of, query_of
from assay.serving.openai.bodies import parsed, read_json, request_sha256
from assay.serving.openai.evals.bodies import ChangedEvalBody, NewEvalBody
from assay.serving.openai.evals.objects import eval_object
from assay.serving.openai.openapi import declares
from assay.serving.openai.pages import page_of_logs

MAX_PAGE = 100
_STORED = ("logs", "stored_completions")


def eval_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/evals", tags=["evals"])

    @router.post("", openapi_extra=declares(body=NewEvalBody))
    async def create(request: Request) -> dict[str, Any]:
        """Create an eval."""
        query_of(request)
        value, project = await read_json(request), project_of(request)
        created = await run_in_threadpool(_created, app, project, value)
        create_request = await connected_request(request, created.request_sha256)

        def make(eval_id: str) -> EvalState:
            return app.evals.put(created.model_copy(update={"eval_id": eval_id}))

        return eval_object(
            await run_in_threadpool(app.eval_idempotency.create_once, create_request, created.eval_id, make)
        )

    @router.get("", openapi_extra=declares("after", "limit", "order", "order_by"))
    def list_evals(request: Request) -> dict[str, Any]:
        """List evals, oldest first."""
        query, project = {"order": "asc", **query_of(request)}, project_of(request)
        if query.get("order_by", "created_at") != "created_at":
            raise ApiError(
                "order_by must be 'created_at', which never changes, so that pages miss no eval.",
                param="order_by",
                code="parameter_not_honoured",
            )

        def shown(eval_id: str) -> dict[str, Any] | None:
            state = app.evals.find(eval_id, project)
            return None if state is None else eval_object(state)

        return page_of_logs(app.evals.logs, project, shown, query, limit=20, max_limit=MAX_PAGE)

    @router.get("/{eval_id}")
    def retrieve(request: Request, eval_id: str) -> dict[str, Any]:
        """Retrieve an eval."""
        query_of(request)
        return eval_object(found_eval(app, request, eval_id))

    @router.post("/{eval_id}", openapi_extra=declares(body=ChangedEvalBody))
    async def update(request: Request, eval_id: str) -> dict[str, Any]:
        """Update name and metadata."""
        query_of(request)
        await run_in_threadpool(found_eval, app, request, eval_id)
        body = parsed(ChangedEvalBody, await read_json(request))

        def changed() -> EvalState:
            has_metadata = "metadata" in body.model_fields_set
            return app.evals.update(eval_id, name=body.name, has_metadata=has_metadata, metadata=body.metadata)

        return eval_object(await run_in_threadpool(changed))

    @router.delete("/{eval_id}")
    def delete(request: Request, eval_id: str) -> dict[str, Any]:
        """Delete an eval and its runs."""
        query_of(request)
        app.evals.delete(found_eval(app, request, eval_id).created.eval_id)
        return {"eval_id": eval_id, "object": "eval.deleted", "deleted": True}

    return router


def found_eval(app: AppState, request: Request, eval_id: str) -> EvalState:
    """Return an eval of the client's project. Raises `ApiError` if there is none."""
    state = app.evals.find(eval_id, project_of(request))
    if state is None:
        raise not_found("eval", eval_id, param="eval_id")
    return state


def _created(app: AppState, project: str, value: Any) -> EvalCreated:
    config = value.get("data_source_config") if isinstance(value, dict) else None
    if isinstance(config, dict) and config.get("type") in _STORED:
        raise ApiError(
            f"data_source_config of type '{config['type']}' is not supported, because completions are not stored. Use "
            "'custom' and send the items with each run.",
            param="data_source_config.type",
            code="data_source_not_served",
        )
    body = parsed(NewEvalBody, value)
    source = body.data_source_config
    _check_schema(source.item_schema)
    criteria = read_criteria(body.testing_criteria)
    check_criteria(criteria, source.item_schema, has_samples=source.include_sample_schema)
    now_s = app.clock.now_s()
    return EvalCreated(
        eval_id=new_id("eval", now_s),
        project=project,
        at_s=now_s,
        name=body.name,
        item_schema=source.item_schema,
        has_samples=source.include_sample_schema,
        testing_criteria=tuple(body.testing_criteria),
        metadata=body.metadata,
        request_sha256=request_sha256(project, "evals.create", value),
    )


def _check_schema(schema: dict[str, Any]) -> None:
    """Raise `ApiError` if the schema is invalid or unsupported."""
    try:
        ItemSchema(schema)
    except ConfigError as error:
        param = "data_source_config.item_schema"
        raise ApiError(str(error), param=param, code="invalid_schema") from None
