"""`evals.runs.*`: a run is an entry of its log, and a worker grades; results are read off its chunks."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse

from assay.records.eval_run import EvalItem
from assay.serving.evals.runs import RUN_STATUSES, EvalRunState, weights_of
from assay.serving.ids import item_place
from assay.serving.openai.bodies import NoBody, parsed, read_json
from assay.serving.openai.declared import takes
from assay.serving.openai.evals.bodies import EvalRunBody
from assay.serving.openai.evals.eval_routes import MAX_PAGE, found_eval
from assay.serving.openai.evals.new_run import run_created
from assay.serving.openai.evals.report import report_text
from assay.serving.openai.evals.shapes import item_shape, run_shape
from assay.serving.openai.pages import Order, page_behind, page_of_shelf
from assay.serving.openai.place import Place, project_of, query_of, still_asked_for
from assay.serving.refusal import RefusedError, not_found

_ITEM_STATUSES = {"pass": ("pass",), "fail": ("fail", "error")}
"""An item that could not be graded has not passed."""


class MarkdownResponse(PlainTextResponse):
    """A page of Markdown."""

    media_type = "text/markdown"


def run_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["evals"])
    _add_runs(router, place)
    _add_ends(router, place)
    _add_items(router, place)

    @router.get("/x/evals/{eval_id}/runs/{run_id}/report", response_class=MarkdownResponse)
    def report(request: Request, eval_id: str, run_id: str) -> MarkdownResponse:
        """A run in words and tables, as Markdown."""
        query_of(request)
        state = _found(place, request, eval_id, run_id)
        return MarkdownResponse(report_text(state, _items_behind(place, state, None, "asc")))

    return router


def _add_runs(router: APIRouter, place: Place) -> None:
    @router.post("/evals/{eval_id}/runs", openapi_extra=takes(body=EvalRunBody))
    async def create(request: Request, eval_id: str) -> dict[str, Any]:
        """Have items graded, and answered first where a model is named."""
        query_of(request)
        of = await run_in_threadpool(found_eval, place, request, eval_id)
        value = await read_json(request)
        created = await run_in_threadpool(run_created, place, of.created, value)
        asked = await still_asked_for(request, created.request_sha256)

        def make(run_id: str) -> EvalRunState:
            for weight in weights_of(place.keeper, created):
                weight.keep(run_id)
            return place.eval_runs.put(created.model_copy(update={"run_id": run_id}))

        made = partial(place.eval_run_repeats.made, asked, created.run_id, make)
        return await run_in_threadpool(lambda: _shown(place, request, made()))

    @router.get("/evals/{eval_id}/runs", openapi_extra=takes("after", "limit", "order", "status"))
    def list_runs(request: Request, eval_id: str) -> dict[str, Any]:
        """All runs of an eval, the oldest first."""
        query, project = {"order": "asc", **query_of(request)}, project_of(request)
        found_eval(place, request, eval_id)
        status = _one_of(query, "status", RUN_STATUSES)

        def shown(run_id: str) -> dict[str, Any] | None:
            state = place.eval_runs.find(run_id, eval_id, project)
            is_shown = state is not None and status in (None, state.status)
            return _shown(place, request, state) if state is not None and is_shown else None

        return page_of_shelf(place.eval_runs.shelf, eval_id, shown, query, limit=20, max_limit=MAX_PAGE)

    @router.get("/evals/{eval_id}/runs/{run_id}")
    def retrieve(request: Request, eval_id: str, run_id: str) -> dict[str, Any]:
        """One run, with what was found so far."""
        query_of(request)
        return _shown(place, request, _found(place, request, eval_id, run_id))


def _add_ends(router: APIRouter, place: Place) -> None:
    # Earlier releases of the SDK ask for a run to be cancelled by its own path.
    @router.post("/evals/{eval_id}/runs/{run_id}", openapi_extra=takes(body=NoBody))
    @router.post("/evals/{eval_id}/runs/{run_id}/cancel", openapi_extra=takes(body=NoBody))
    async def cancel(request: Request, eval_id: str, run_id: str) -> dict[str, Any]:
        """Have nothing more graded; what was stays."""
        query_of(request)
        parsed(NoBody, await read_json(request))
        await run_in_threadpool(_found, place, request, eval_id, run_id)
        return await run_in_threadpool(lambda: _shown(place, request, place.eval_runs.cancel(run_id)))

    @router.delete("/evals/{eval_id}/runs/{run_id}")
    def delete(request: Request, eval_id: str, run_id: str) -> dict[str, Any]:
        """Delete a run and its results."""
        query_of(request)
        _found(place, request, eval_id, run_id)
        place.eval_runs.delete(run_id)
        return {"run_id": run_id, "object": "eval.run.deleted", "deleted": True}


def _add_items(router: APIRouter, place: Place) -> None:
    items = "/evals/{eval_id}/runs/{run_id}/output_items"

    @router.get(items, openapi_extra=takes("after", "limit", "order", "status"))
    def list_items(request: Request, eval_id: str, run_id: str) -> dict[str, Any]:
        """The items that are graded, in their order."""
        query = {"order": "asc", **query_of(request)}
        state = _found(place, request, eval_id, run_id)
        status = _one_of(query, "status", tuple(_ITEM_STATUSES))

        def shown(item: EvalItem) -> dict[str, Any] | None:
            is_shown = status is None or item.status in _ITEM_STATUSES[status]
            return item_shape(state, item) if is_shown else None

        return page_behind(
            lambda after, order: _items_behind(place, state, after, order),
            shown,
            query,
            limit=20,
            max_limit=MAX_PAGE,
        )

    @router.get(items + "/{item_id}")
    def retrieve(request: Request, eval_id: str, run_id: str, item_id: str) -> dict[str, Any]:
        """One item."""
        query_of(request)
        state = _found(place, request, eval_id, run_id)
        item = place.eval_runs.item(state, item_id)
        if item is None:
            raise not_found("output item", item_id, param="output_item_id")
        return item_shape(state, item)


def _items_behind(place: Place, state: EvalRunState, after: str | None, order: Order) -> Iterator[EvalItem]:
    """Items behind one, chunk by chunk as they are asked for."""
    run_id = state.created.run_id
    index = None if after is None else item_place(after, run_id)
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
        if is_before or (chunk := place.eval_runs.chunks.find(run_id, number)) is None:
            continue
        for item in chunk.items if order == "asc" else reversed(chunk.items):
            if index is None or (item.index > index if order == "asc" else item.index < index):
                yield item


def _shown(place: Place, request: Request, state: EvalRunState) -> dict[str, Any]:
    return run_shape(state, _address(request), place.queue.why_spent)


def _found(place: Place, request: Request, eval_id: str, run_id: str) -> EvalRunState:
    found_eval(place, request, eval_id)
    state = place.eval_runs.find(run_id, eval_id, project_of(request))
    if state is None:
        raise not_found("eval run", run_id, param="run_id")
    return state


def _address(request: Request) -> str:
    """The API's, as this client calls it."""
    return f"{str(request.base_url).rstrip('/')}/v1"


def _one_of(query: dict[str, str], name: str, words: tuple[str, ...]) -> str | None:
    word = query.get(name)
    if word is not None and word not in words:
        raise RefusedError(
            f"{name} is one of {', '.join(words)}, not {word!r:.40}.", param=name, code="invalid_value"
        )
    return word
