"""`usage.costs`: device-hours by day (UTC), line item and project.

A bucket holds the attempts and chunks that have ended; running ones are charged when they end.
"""

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Any

from fastapi import APIRouter, Request

from assay.serving.admin.spend import DayCost, begin_s, costs_of_day, day_of, days_between
from assay.serving.api_error import ApiError
from assay.serving.openai.admin.bodies import listed_query, whole_number
from assay.serving.openai.app_state import AppState
from assay.serving.openai.openapi import declares

MAX_DAYS = 180
_DAY = timedelta(days=1)
_ONE = ("start_time", "end_time", "bucket_width", "limit", "page")
_MANY = ("group_by", "project_ids", "line_items")
_GROUPS = ("project_id", "line_item")
LATEST_S = 32_503_680_000
"""The year 3000."""


def cost_routes(app: AppState) -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.get("/costs", openapi_extra=declares(*_ONE, *_MANY))
    def costs(request: Request) -> dict[str, Any]:
        """Device-hours by day; a `line_item` is a job, an eval run, a batch or a session."""
        query = listed_query(request, _MANY)
        first, end, next_page = _days(app, query)
        buckets = [_bucket(app, day, query) for day in days_between(first, end)]
        return {"object": "page", "data": buckets, "has_more": next_page is not None, "next_page": next_page}

    return router


def _days(app: AppState, query: Mapping[str, list[str]]) -> tuple[date, date, str | None]:
    """Return first day, end day and the next page's token."""
    start_s = whole_number(query, "start_time", None, most=LATEST_S)
    end_s = whole_number(query, "end_time", int(app.clock.now_s()) + 1, most=LATEST_S)
    limit = whole_number(query, "limit", 7, most=MAX_DAYS)
    if query.get("bucket_width", ["1d"]) != ["1d"]:
        raise ApiError("bucket_width must be '1d'.", param="bucket_width", code="invalid_value")
    for name in query.get("group_by", ()):
        if name not in _GROUPS:
            names = ", ".join(_GROUPS)
            raise ApiError(
                f"group_by must be one of {names}, not {name!r:.40}.", param="group_by", code="invalid_value"
            )
    first = day_of(start_s)
    if "page" in query:
        try:
            first = max(first, date.fromisoformat(query["page"][0]))
        except ValueError:
            raise ApiError(
                "page must be the 'next_page' of an earlier response.", param="page", code="invalid_value"
            ) from None
    last = day_of(max(start_s, end_s - 1)) + _DAY
    end = min(last, first + timedelta(days=max(1, limit)))
    return first, end, end.isoformat() if end < last else None


def _bucket(app: AppState, day: date, query: Mapping[str, list[str]]) -> dict[str, Any]:
    costs = [
        cost
        for cost in costs_of_day(app.charged, day)
        if cost.project in query.get("project_ids", [cost.project])
        and cost.resource_id in query.get("line_items", [cost.resource_id])
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
        group = (cost.project if "project_id" in groups else None, cost.resource_id if "line_item" in groups else None)
        device_s, training_s = sums.get(group, (0.0, 0.0))
        sums[group] = device_s + cost.device_s, training_s + cost.training_s
    for (project, resource_id), (device_s, training_s) in sums.items():
        yield {
            "object": "organization.costs.result",
            "amount": {"currency": "device_hours", "value": device_s / 3600},
            "project_id": project,
            "line_item": resource_id,
            "quantity": device_s / 3600,
            "quantity_unit": "duration_hours",
            "x_assay": {
                "training_device_hours": training_s / 3600,
                "other_device_hours": (device_s - training_s) / 3600,
            },
        }
