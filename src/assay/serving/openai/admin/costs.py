"""`usage.costs`: what jobs, runs of evals and batches held devices for, in device-hours, by day, by what and by
project.

A bucket is a day (UTC). Its hours are those of attempts and chunks that are over: what goes on is charged when
it ends.
"""

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Any

from fastapi import APIRouter, Request

from assay.serving.admin.spend import DayCost, begin_s, costs_of_day, day_of, days_between
from assay.serving.openai.admin.bodies import listed_query, whole_number
from assay.serving.openai.declared import takes
from assay.serving.openai.place import Place
from assay.serving.refusal import RefusedError

MAX_DAYS = 180
_DAY = timedelta(days=1)
_ONE = ("start_time", "end_time", "bucket_width", "limit", "page")
_MANY = ("group_by", "project_ids", "line_items")
_GROUPS = ("project_id", "line_item")
LATEST_S = 32_503_680_000
"""The year 3000."""


def cost_routes(place: Place) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.get("/costs", openapi_extra=takes(*_ONE, *_MANY))
    def costs(request: Request) -> dict[str, Any]:
        """Device-hours by day; `line_item` is a job, a run of an eval, or a batch."""
        query = listed_query(request, _MANY)
        first, behind, next_page = _days(place, query)
        buckets = [_bucket(place, day, query) for day in days_between(first, behind)]
        return {
            "object": "page",
            "data": buckets,
            "has_more": next_page is not None,
            "next_page": next_page,
        }

    return router


def _days(place: Place, query: Mapping[str, list[str]]) -> tuple[date, date, str | None]:
    """The days of this page, and the name of the next one."""
    start_s = whole_number(query, "start_time", None, most=LATEST_S)
    end_s = whole_number(query, "end_time", int(place.clock.now_s()) + 1, most=LATEST_S)
    limit = whole_number(query, "limit", 7, most=MAX_DAYS)
    if query.get("bucket_width", ["1d"]) != ["1d"]:
        raise RefusedError("bucket_width is '1d'.", param="bucket_width", code="invalid_value")
    for name in query.get("group_by", ()):
        if name not in _GROUPS:
            there = ", ".join(_GROUPS)
            raise RefusedError(
                f"Costs are grouped by {there}; by {name!r:.40} they are not.",
                param="group_by",
                code="invalid_value",
            )
    first = day_of(start_s)
    if "page" in query:
        try:
            first = max(first, date.fromisoformat(query["page"][0]))
        except ValueError:
            raise RefusedError("page is what 'next_page' said.", param="page", code="invalid_value") from None
    last = day_of(max(start_s, end_s - 1)) + _DAY
    behind = min(last, first + timedelta(days=max(1, limit)))
    return first, behind, behind.isoformat() if behind < last else None


def _bucket(place: Place, day: date, query: Mapping[str, list[str]]) -> dict[str, Any]:
    costs = [
        cost
        for cost in costs_of_day(place.charged, day)
        if cost.project in query.get("project_ids", [cost.project])
        and cost.thing_id in query.get("line_items", [cost.thing_id])
    ]
    return {
        "object": "bucket",
        "start_time": int(begin_s(day)),
        "end_time": int(begin_s(day + _DAY)),
        "results": [*_results(costs, query.get("group_by", []))],
    }


def _results(costs: Iterable[DayCost], groups: list[str]) -> Iterable[dict[str, Any]]:
    sums: dict[tuple[str | None, str | None], tuple[float, float]] = {}
    for cost in costs:
        group = (
            cost.project if "project_id" in groups else None,
            cost.thing_id if "line_item" in groups else None,
        )
        device_s, training_s = sums.get(group, (0.0, 0.0))
        sums[group] = device_s + cost.device_s, training_s + cost.training_s
    for (project, thing_id), (device_s, training_s) in sums.items():
        yield {
            "object": "organization.costs.result",
            "amount": {"currency": "device_hours", "value": device_s / 3600},
            "project_id": project,
            "line_item": thing_id,
            "quantity": device_s / 3600,
            "quantity_unit": "duration_hours",
            "x_assay": {
                "training_device_hours": training_s / 3600,
                "other_device_hours": (device_s - training_s) / 3600,
            },
        }
