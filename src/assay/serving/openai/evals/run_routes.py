"""`evals.runs.*`: routes write to the run's log, and a worker grades. Results are read from its chunks."""

from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse

from assay.records.eval_run import EvalCreated, EvalItem, EvalRunCreated, EvalRunEntry
from assay.serving.api_error import ApiError, not_found
from assay.serving.evals.criteria import judges_of, read_criteria
from assay.serving.evals.data_source import CompletionsSource, FileId
from assay.serving.evals.runs import RUN_STATUSES, EvalRunState, weights_of
from assay.serving.ids import item_index_of, new_id
from assay.serving.methods import SERVED_METHODS
from assay.serving.openai.app_state import AppState, connected_retry, project_of
from assay.serving.openai.bodies import NoBody, parsed, request_sha256
from assay.serving.openai.evals.eval_routes import EvalRunBody
from assay.serving.openai.evals.objects import item_object, report_text, run_object
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody, declares
from assay.serving.openai.pages import Order, page_after, page_of_resources

_ITEM_STATUSES = {"pass": ("pass",), "fail": ("fail", "error")}
"""An item that could not be graded counts as failed."""


class MarkdownResponse(PlainTextResponse):
    """A Markdown page."""

    media_type = "text/markdown"


def run_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["evals"], dependencies=QUERY_CHECKED)
    _add_runs(router, app)
    _add_items(router, app)

    @router.get("/x/evals/{eval_id}/runs/{run_id}/report", response_class=MarkdownResponse)
    def report(request: Request, eval_id: str, run_id: str) -> MarkdownResponse:
        """The run's report as Markdown."""
        state = _found(app, request, eval_id, run_id)
        return MarkdownResponse(report_text(state, _items_after(app, state, None, "asc")))

    return router


def _add_runs(router: APIRouter, app: AppState) -> None:
    @router.post("/evals/{eval_id}/runs", openapi_extra=declares(body=EvalRunBody))
    def create(request: Request, eval_id: str, body: JsonBody) -> dict[str, Any]:
        """Grade items; with a model, generate samples first."""
        of = app.evals.found(eval_id, project_of(request))
        created = run_created(app, of.created, body.json())

        def put(entry: EvalRunEntry) -> EvalRunState:
            for weight in weights_of(app.retention, created):
                weight.retain(getattr(entry, app.eval_runs.id_field))
            return app.eval_runs.put(entry)

        return _shape(app, request, app.eval_runs.create_once(created, connected_retry(request), put))

    @router.get("/evals/{eval_id}/runs", openapi_extra=declares("after", "limit", "order", "status"))
    def list_runs(request: Request, eval_id: str) -> dict[str, Any]:
        """List the runs of an eval, oldest first."""
        query = {"order": "asc", **request.query_params}
        app.evals.found(eval_id, project_of(request))
        status = _one_of(query, "status", RUN_STATUSES)

        def shape(state: EvalRunState) -> dict[str, Any] | None:
            return _shape(app, request, state) if status in (None, state.status) else None

        return page_of_resources(app.eval_runs, request, shape, owner=eval_id, query=query)

    @router.get("/evals/{eval_id}/runs/{run_id}")
    def retrieve(request: Request, eval_id: str, run_id: str) -> dict[str, Any]:
        """Retrieve a run with its results so far."""
        return _shape(app, request, _found(app, request, eval_id, run_id))

    # Earlier SDK releases cancel a run by a POST to its own path.
    @router.post("/evals/{eval_id}/runs/{run_id}", openapi_extra=declares(body=NoBody))
    @router.post("/evals/{eval_id}/runs/{run_id}/cancel", openapi_extra=declares(body=NoBody))
    def cancel(request: Request, eval_id: str, run_id: str, body: JsonBody) -> dict[str, Any]:
        """Cancel a run; its results so far are kept."""
        body.parsed(NoBody)
        _found(app, request, eval_id, run_id)
        return _shape(app, request, app.eval_runs.cancel(run_id))

    @router.delete("/evals/{eval_id}/runs/{run_id}")
    def delete(request: Request, eval_id: str, run_id: str) -> dict[str, Any]:
        """Delete a run and its results."""
        _found(app, request, eval_id, run_id)
        app.eval_runs.delete(run_id)
        return {"run_id": run_id, "object": "eval.run.deleted", "deleted": True}


def _add_items(router: APIRouter, app: AppState) -> None:
    items = "/evals/{eval_id}/runs/{run_id}/output_items"

    @router.get(items, openapi_extra=declares("after", "limit", "order", "status"))
    def list_items(request: Request, eval_id: str, run_id: str) -> dict[str, Any]:
        """List graded items in order."""
        query = {"order": "asc", **request.query_params}
        state = _found(app, request, eval_id, run_id)
        status = _one_of(query, "status", tuple(_ITEM_STATUSES))

        def shown(item: EvalItem) -> dict[str, Any] | None:
            is_shown = status is None or item.status in _ITEM_STATUSES[status]
            return item_object(state, item) if is_shown else None

        return page_after(lambda after, order: _items_after(app, state, after, order), shown, query)

    @router.get(items + "/{item_id}")
    def retrieve(request: Request, eval_id: str, run_id: str, item_id: str) -> dict[str, Any]:
        """Retrieve an item."""
        state = _found(app, request, eval_id, run_id)
        item = app.eval_runs.item(state, item_id)
        if item is None:
            raise not_found("output item", item_id, param="output_item_id")
        return item_object(state, item)


def _items_after(app: AppState, state: EvalRunState, after: str | None, order: Order) -> Iterator[EvalItem]:
    """Yield items after one, reading chunks lazily."""
    run_id = state.created.run_id
    index = None if after is None else item_index_of(after, run_id)
    if after is not None and index is None:
        raise not_found("output item", after, param="after")
    if state.read is None:
        return
    numbers: Iterable[int] = range(state.num_done)
    for number in numbers if order == "asc" else reversed([*numbers]):
        first = number * state.read.chunk_items
        is_before = index is not None and (
            first + state.read.chunk_items <= index + 1 if order == "asc" else first >= index
        )
        if is_before or (chunk := app.eval_runs.find_chunk(run_id, number)) is None:
            continue
        for item in chunk.items if order == "asc" else reversed(chunk.items):
            if index is None or (item.index > index if order == "asc" else item.index < index):
                yield item


def _shape(app: AppState, request: Request, state: EvalRunState) -> dict[str, Any]:
    address = f"{str(request.base_url).rstrip('/')}/v1"  # as this client uses it
    return run_object(state, address, app.queue.spent_reason)


def _found(app: AppState, request: Request, eval_id: str, run_id: str) -> EvalRunState:
    project = project_of(request)
    app.evals.found(eval_id, project)
    state = app.eval_runs.found(run_id, project)
    if state.created.eval_id != eval_id:
        raise not_found("eval run", run_id, param="run_id")
    return state


def _one_of(query: dict[str, str], name: str, words: tuple[str, ...]) -> str | None:
    word = query.get(name)
    if word is not None and word not in words:
        raise ApiError(f"{name} must be one of {', '.join(words)}, not {word!r:.40}.", param=name, code="invalid_value")
    return word


FILE_PURPOSE = "evals"


def run_created(app: AppState, of: EvalCreated, value: Any) -> EvalRunCreated:
    """Return the log entry that creates a run. Raises `ApiError` if the request is invalid."""
    _reject_stored_sources(value)
    body = parsed(EvalRunBody, value)
    source, criteria = body.data_source, read_criteria(of.testing_criteria)
    if isinstance(source, CompletionsSource) and not of.has_samples:
        raise ApiError(
            "This eval has no samples (data_source_config.include_sample_schema), so its criteria cannot read "
            "completions. Use a data source of type 'jsonl'.",
            param="data_source.type",
            code="invalid_value",
        )
    if isinstance(source.source, FileId):
        param = "data_source.source.id"
        app.files.usable(source.source.id, of.project, purpose=FILE_PURPOSE, param=param, users="eval runs")
    model = source.model if isinstance(source, CompletionsSource) else ""
    sources: dict[str, dict[str, Any]] = {}
    if model:
        sources[model] = _weights(app, of.project, model, "data_source.model")
    for judge in sorted(judges_of(criteria) - sources.keys()):
        if app.graders.judge is None or app.names.find(judge, of.project):
            sources[judge] = _weights(app, of.project, judge, "testing_criteria")
    now_s = app.clock.now_s()
    return EvalRunCreated(
        run_id=new_id("evalrun", now_s),
        eval_id=of.eval_id,
        project=of.project,
        at_s=now_s,
        name=body.name,
        data_source=value["data_source"],
        item_schema=of.item_schema,
        testing_criteria=of.testing_criteria,
        model=model,
        sources=sources,
        judge=app.graders.judge,
        metadata=body.metadata,
        request_sha256=request_sha256(of.project, f"evals.runs.create {of.eval_id}", value),
    )


def _reject_stored_sources(value: Any) -> None:
    """Raise `ApiError` for data sources of the API that are not served."""
    source = value.get("data_source") if isinstance(value, dict) else None
    if not isinstance(source, dict):
        return
    rows = source.get("source")
    for kind, where in (
        (source.get("type"), "type"),
        (rows.get("type") if isinstance(rows, dict) else None, "source.type"),
    ):
        if kind in ("responses", "stored_completions", "logs"):
            raise ApiError(
                f"'{kind}' is not supported, because completions are not stored. Send 'file_content' or 'file_id'.",
                param=f"data_source.{where}",
                code="data_source_not_served",
            )


def _weights(app: AppState, project: str, model: str, param: str) -> dict[str, Any]:
    found = app.names.find(model, project)
    if found is None:
        hint = "" if param != "testing_criteria" else " Name one of these, or start 'assay serve' with --judge URL."
        raise ApiError(
            f"There is no model {model!r:.160} in this project; 'models.list' returns the available ones.{hint}",
            param=param,
            code="model_not_found",
        )
    if not SERVED_METHODS[found.method].writes:
        raise ApiError(
            f"Model {model!r:.160} is of '{found.method}', which generates no text. Use another model.",
            param=param,
            code="model_cannot",
        )
    return found.source.model_dump(mode="json", exclude_none=True)
