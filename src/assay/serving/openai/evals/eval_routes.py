"""`evals.*`: what items look like, and by what they pass; both are checked before an eval is there."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from assay.base.errors import ConfigError
from assay.records.eval_run import EvalCreated
from assay.serving.evals.criteria import check_criteria, read_criteria
from assay.serving.evals.evals import EvalState
from assay.serving.evals.item_schema import ItemSchema
from assay.serving.ids import new_id
from assay.serving.openai.bodies import parsed, read_json, request_sha256
from assay.serving.openai.declared import takes
from assay.serving.openai.evals.bodies import ChangedEvalBody, NewEvalBody
from assay.serving.openai.evals.shapes import eval_shape
from assay.serving.openai.pages import page_of_shelf
from assay.serving.openai.place import Place, project_of, query_of, still_asked_for
from assay.serving.refusal import RefusedError, not_found

MAX_PAGE = 100
_STORED = ("logs", "stored_completions")


def eval_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/evals", tags=["evals"])

    @router.post("", openapi_extra=takes(body=NewEvalBody))
    async def create(request: Request) -> dict[str, Any]:
        """Create an eval."""
        query_of(request)
        value, project = await read_json(request), project_of(request)
        created = await run_in_threadpool(_created, place, project, value)
        asked = await still_asked_for(request, created.request_sha256)

        def make(eval_id: str) -> EvalState:
            return place.evals.put(created.model_copy(update={"eval_id": eval_id}))

        return eval_shape(await run_in_threadpool(place.eval_repeats.made, asked, created.eval_id, make))

    @router.get("", openapi_extra=takes("after", "limit", "order", "order_by"))
    def list_evals(request: Request) -> dict[str, Any]:
        """All evals, the oldest first."""
        query, project = {"order": "asc", **query_of(request)}, project_of(request)
        if query.get("order_by", "created_at") != "created_at":
            raise RefusedError(
                "Evals are listed by 'created_at', which never changes: who reads page by page misses none.",
                param="order_by",
                code="parameter_not_honoured",
            )

        def shown(eval_id: str) -> dict[str, Any] | None:
            state = place.evals.find(eval_id, project)
            return None if state is None else eval_shape(state)

        return page_of_shelf(place.evals.shelf, project, shown, query, limit=20, max_limit=MAX_PAGE)

    @router.get("/{eval_id}")
    def retrieve(request: Request, eval_id: str) -> dict[str, Any]:
        """One eval."""
        query_of(request)
        return eval_shape(found_eval(place, request, eval_id))

    @router.post("/{eval_id}", openapi_extra=takes(body=ChangedEvalBody))
    async def update(request: Request, eval_id: str) -> dict[str, Any]:
        """Call it otherwise; what is judged, and by what, stays."""
        query_of(request)
        await run_in_threadpool(found_eval, place, request, eval_id)
        body = parsed(ChangedEvalBody, await read_json(request))

        def changed() -> EvalState:
            has_metadata = "metadata" in body.model_fields_set
            return place.evals.update(
                eval_id, name=body.name, has_metadata=has_metadata, metadata=body.metadata
            )

        return eval_shape(await run_in_threadpool(changed))

    @router.delete("/{eval_id}")
    def delete(request: Request, eval_id: str) -> dict[str, Any]:
        """Delete an eval: nobody finds it or its runs any more."""
        query_of(request)
        place.evals.delete(found_eval(place, request, eval_id).created.eval_id)
        return {"eval_id": eval_id, "object": "eval.deleted", "deleted": True}

    return router


def found_eval(place: Place, request: Request, eval_id: str) -> EvalState:
    """The eval, in its client's project."""
    state = place.evals.find(eval_id, project_of(request))
    if state is None:
        raise not_found("eval", eval_id, param="eval_id")
    return state


def _created(place: Place, project: str, value: Any) -> EvalCreated:
    config = value.get("data_source_config") if isinstance(value, dict) else None
    if isinstance(config, dict) and config.get("type") in _STORED:
        raise RefusedError(
            f"data_source_config of type '{config['type']}' is not served: answers are not stored here. Use "
            "'custom', and give the items to each run.",
            param="data_source_config.type",
            code="data_source_not_served",
        )
    body = parsed(NewEvalBody, value)
    source = body.data_source_config
    _check_schema(source.item_schema)
    criteria = read_criteria(body.testing_criteria)
    check_criteria(criteria, source.item_schema, has_samples=source.include_sample_schema)
    now_s = place.clock.now_s()
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
    """Refuse what is no schema, or none that is served."""
    try:
        ItemSchema(schema)
    except ConfigError as error:
        param = "data_source_config.item_schema"
        raise RefusedError(str(error), param=param, code="invalid_schema") from None
