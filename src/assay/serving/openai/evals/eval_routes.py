"""`evals.*`: item schema and testing criteria are validated before an eval is created."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from assay.base.errors import ConfigError
from assay.records.eval_run import EvalCreated
from assay.serving.api_error import ApiError
from assay.serving.evals.criteria import check_criteria, read_criteria
from assay.serving.evals.data_source import EvalSource
from assay.serving.evals.item_schema import ItemSchema
from assay.serving.ids import new_id
from assay.serving.openai.app_state import AppState, connected_retry, project_of
from assay.serving.openai.bodies import Metadata, StrictBody, parsed, request_sha256
from assay.serving.openai.evals.objects import eval_object
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody, declares
from assay.serving.openai.pages import page_of_resources

MAX_CRITERIA = 32
_Title = Annotated[str, Field(min_length=1, max_length=255)]
_Tags = Annotated[Metadata, Field(max_length=16)]


class CustomConfigBody(StrictBody):
    """`data_source_config`: the item schema."""

    type: Literal["custom"]
    item_schema: dict[str, Any]
    include_sample_schema: bool = False


class NewEvalBody(StrictBody):
    """`evals.create`."""

    data_source_config: CustomConfigBody
    testing_criteria: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_CRITERIA)
    name: _Title = "eval"
    metadata: _Tags | None = None


class ChangedEvalBody(StrictBody):
    """`evals.update`."""

    name: _Title | None = None
    metadata: _Tags | None = None


class EvalRunBody(StrictBody):
    """`evals.runs.create`."""

    data_source: EvalSource
    name: _Title = "run"
    metadata: _Tags | None = None


_STORED = ("logs", "stored_completions")


def eval_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/evals", tags=["evals"], dependencies=QUERY_CHECKED)

    @router.post("", openapi_extra=declares(body=NewEvalBody))
    def create(request: Request, body: JsonBody) -> dict[str, Any]:
        """Create an eval."""
        created = _created(app, project_of(request), body.json())
        return eval_object(app.evals.create_once(created, connected_retry(request)))

    @router.get("", openapi_extra=declares("after", "limit", "order", "order_by"))
    def list_evals(request: Request) -> dict[str, Any]:
        """List evals, oldest first."""
        query = {"order": "asc", **request.query_params}
        if query.get("order_by", "created_at") != "created_at":
            raise ApiError(
                "order_by must be 'created_at', which never changes, so that pages miss no eval.",
                param="order_by",
                code="parameter_not_honoured",
            )
        return page_of_resources(app.evals, request, eval_object, query=query)

    @router.get("/{eval_id}")
    def retrieve(request: Request, eval_id: str) -> dict[str, Any]:
        """Retrieve an eval."""
        return eval_object(app.evals.found(eval_id, project_of(request)))

    @router.post("/{eval_id}", openapi_extra=declares(body=ChangedEvalBody))
    def update(request: Request, eval_id: str, body: JsonBody) -> dict[str, Any]:
        """Update name and metadata."""
        app.evals.found(eval_id, project_of(request))
        changed = body.parsed(ChangedEvalBody)
        has_metadata = "metadata" in changed.model_fields_set
        return eval_object(
            app.evals.update(eval_id, name=changed.name, has_metadata=has_metadata, metadata=changed.metadata)
        )

    @router.delete("/{eval_id}")
    def delete(request: Request, eval_id: str) -> dict[str, Any]:
        """Delete an eval and its runs."""
        app.evals.found(eval_id, project_of(request))
        app.evals.delete(eval_id)
        return {"eval_id": eval_id, "object": "eval.deleted", "deleted": True}

    return router


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
