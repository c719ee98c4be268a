"""`evals.runs.*`: routes write to the run's log, and a worker grades. Results are read from its chunks."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse

from assay.records.eval_run import EvalItem
from assay.serving.api_error import ApiError, not_found
from assay.serving.evals.runs import RUN_STATUSES, EvalRunState, weights_of
from assay.serving.ids import item_index_of
from assay.serving.openai.app_state import AppState, connected_request, project_of, query_of
from assay.serving.openai.bodies import NoBody, parsed, read_json
from assay.serving.openai.evals.bodies import EvalRunBody
from assay.serving.openai.evals.eval_routes import MAX_PAGE, found_eval
from assay.serving.openai.evals.new_run import run_created
from assay.serving.openai.evals.objects import item_object, run_object
from assay.serving.openai.evals.report import report_text
from assay.serving.openai.openapi import declares
from assay.serving.openai.pages import Order, page_after, page_of_logs

_ITEM_STATUSES = {"pass": ("pass",), "fail": ("fail", "error")}
"""An item that could not be graded counts as failed."""


class MarkdownResponse(PlainTextResponse):
    """A Markdown page."""

    media_type = "text/markdown"


def run_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["evals"])
    _add_runs(router, app)
    _add_ends(router, app)
    _add_items(router, app)

    @router.get("/x/evals/{eval_id}/runs/{run_id}/report", response_class=MarkdownResponse)
    def report(request: Request, eval_id: str, run_id: str) -> MarkdownResponse:
        """The run's report as Markdown."""
        query_of(request)
        state = _found(app, request, eval_id, run_id)
        return MarkdownResponse(report_text(state, _items_after(app, state, None, "asc")))

    return router


def _add_runs(router: APIRouter, app: AppState) -> None:
    @router.post("/evals/{eval_id}/runs", openapi_extra=declares(body=EvalRunBody))
    async def create(request: Request, eval_id: str) -> dict[str, Any]:
        """Grade items; with a model, generate samples first."""
        query_of(request)
        of = await run_in_threadpool(found_eval, app, request, eval_id)
        value = await read_json(request)
        created = await run_in_threadpool(run_created, app, of.created, value)
        create_request = await connected_request(request, created.request_sha256)

        def make(run_id: str) -> EvalRunState:
            for weight in weights_of(app.retention, created):
                weight.retain(run_id)
            return app.eval_runs.put(created.model_copy(update={"run_id": run_id}))

        create_once = partial(app.eval_run_idempotency.create_once, create_request, created.run_id, make)
        return await run_in_threadpool(lambda: _shown(app, request, create_once()))

    @router.get("/evals/{eval_id}/runs", openapi_extra=declares("after", "limit", "order", "status"))
    def list_runs(request: Request, eval_id: str) -> dict[str, Any]:
        """List the runs of an eval, oldest first."""
        query, project = {"order": "asc", **query_of(request)}, project_of(request)
        found_eval(app, request, eval_id)
        status = _one_of(query, "status", RUN_STATUSES)

        def shown(run_id: str) -> dict[str, Any] | None:
            state = app.eval_runs.find(run_id, eval_id, project)
            is_shown = state is not None and status in (None, state.status)
            return _shown(app, request, state) if state is not None and is_shown else None

        return page_of_logs(app.eval_runs.logs, eval_id, shown, query, limit=20, max_limit=MAX_PAGE)

    @router.get("/evals/{eval_id}/runs/{run_id}")
    def retrieve(request: Request, eval_id: str, run_id: str) -> dict[str, Any]:
        """Retrieve a run with its results so far."""
        query_of(request)
        return _shown(app, request, _found(app, request, eval_id, run_id))


def _add_ends(router: APIRouter, app: AppState) -> None:
    # Earlier SDK releases cancel a run by a POST to its own path.
    @router.post("/evals/{eval_id}/runs/{run_id}", openapi_extra=declares(body=NoBody))
    @router.post("/evals/{eval_id}/runs/{run_id}/cancel", openapi_extra=declares(body=NoBody))
    async def cancel(request: Request, eval_id: str, run_id: str) -> dict[str, Any]:
        """Cancel a run; its results so far are kept."""
        query_of(request)
        parsed(NoBody, await read_json(request))
        await run_in_threadpool(_found, app, request, eval_id, run_id)
        return await run_in_threadpool(lambda: _shown(app, request, app.eval_runs.cancel(run_id)))

    @router.delete("/evals/{eval_id}/runs/{run_id}")
    def delete(request: Request, eval_id: str, run_id: str) -> dict[str, Any]:
        """Delete a run and its results."""
        query_of(request)
        _found(app, request, eval_id, run_id)
        app.eval_runs.delete(run_id)
        return {"run_id": run_id, "object": "eval.run.deleted", "deleted": True}


def _add_items(router: APIRouter, app: AppState) -> None:
    items = "/evals/{eval_id}/runs/{run_id}/output_items"

    @router.get(items, openapi_extra=declares("after", "limit", "order", "status"))
    def list_items(request: Request, eval_id: str, run_id: str) -> dict[str, Any]:
        """List graded items in order."""
        query = {"order": "asc", **query_of(request)}
        state = _found(app, request, eval_id, run_id)
        status = _one_of(query, "status", tuple(_ITEM_STATUSES))

        def shown(item: EvalItem) -> dict[str, Any] | None:
            is_shown = status is None or item.status in _ITEM_STATUSES[status]
            return item_object(state, item) if is_shown else None

        return page_after(
            lambda after, order: _items_after(app, state, after, order), shown, query, limit=20, max_limit=MAX_PAGE
        )

    @router.get(items + "/{item_id}")
    def retrieve(request: Request, eval_id: str, run_id: str, item_id: str) -> dict[str, Any]:
        """Retrieve an item."""
        query_of(request)
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
    numbers: Iterable[int] = range(len(state.graded))
    for number in numbers if order == "asc" else reversed([*numbers]):
        first = number * state.read.chunk_items
        is_before = index is not None and (
            first + state.read.chunk_items <= index + 1 if order == "asc" else first >= index
        )
        if is_before or (chunk := app.eval_runs.chunks.find(run_id, number)) is None:
            continue
        for item in chunk.items if order == "asc" else reversed(chunk.items):
            if index is None or (item.index > index if order == "asc" else item.index < index):
                yield item


def _shown(app: AppState, request: Request, state: EvalRunState) -> dict[str, Any]:
    return run_object(state, _address(request), app.queue.spent_reason)


def _found(app: AppState, request: Request, eval_id: str, run_id: str) -> EvalRunState:
    found_eval(app, request, eval_id)
    state = app.eval_runs.find(run_id, eval_id, project_of(request))
    if state is None:
        raise not_found("eval run", run_id, param="run_id")
    return state


def _address(request: Request) -> str:
    """Return the API's base URL as this client uses it."""
    return f"{str(request.base_url).rstrip('/')}/v1"


def _one_of(query: dict[str, str], name: str, words: tuple[str, ...]) -> str | None:
    word = query.get(name)
    if word is not None and word not in words:
        raise ApiError(f"{name} must be one of {', '.join(words)}, not {word!r:.40}.", param=name, code="invalid_value")
    return word
