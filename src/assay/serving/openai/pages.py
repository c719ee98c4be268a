"""Cursor pagination. A cursor is the id of the last item, and items never change order.

New items therefore do not shift pages, and deleted items are just missing. Items are read lazily.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from assay.serving.api_error import ApiError, not_found
from assay.serving.ids import is_id
from assay.serving.log_repository import LogRepository
from assay.store.logs.entry import EntryT

Order = Literal["asc", "desc"]
ItemT = TypeVar("ItemT")
StateT = TypeVar("StateT")


def page_of(
    ids: Iterable[str],
    shown: Callable[[str], Mapping[str, Any] | None],
    query: Mapping[str, str],
    *,
    limit: int,
    max_limit: int,
) -> dict[str, Any]:
    """Return a page of items whose ids sort by age (see `page_behind`)."""

    def items_after(after: str | None, order: Order) -> Iterable[str]:
        found = sorted(ids, reverse=order == "desc")
        return (
            resource_id
            for resource_id in found
            if after is None or (resource_id < after if order == "desc" else resource_id > after)
        )

    return page_after(items_after, shown, query, limit=limit, max_limit=max_limit)


def page_of_logs(
    logs: LogRepository[EntryT, StateT],
    owner: str,
    shown: Callable[[str], Mapping[str, Any] | None],
    query: Mapping[str, str],
    *,
    limit: int,
    max_limit: int,
) -> dict[str, Any]:
    """Return a page of an owner's resources (see `page_behind`)."""

    def items_after(after: str | None, order: Order) -> Iterable[str]:
        if after is not None and not is_id(logs.id_kind, after):
            raise not_found(logs.id_kind, after, param="after")
        return (logs.newest if order == "desc" else logs.oldest)(owner, after)

    return page_after(items_after, shown, query, limit=limit, max_limit=max_limit)


def page_after(
    items_after: Callable[[str | None, Order], Iterable[ItemT]],
    shown: Callable[[ItemT], Mapping[str, Any] | None],
    query: Mapping[str, str],
    *,
    limit: int,
    max_limit: int,
) -> dict[str, Any]:
    """Return a page. `items_after`: (cursor, order) -> items after it; `shown`: item -> object, or None to skip it.

    `limit`: the default limit. The default order is newest first.
    """
    size = _limit(query, default=limit, largest=max_limit)
    name = query.get("order", "desc")
    if name not in ("asc", "desc"):
        raise ApiError(f"order must be 'asc' or 'desc', not {name!r:.40}.", param="order", code="invalid_value")
    order: Order = "asc" if name == "asc" else "desc"
    found: list[Mapping[str, Any]] = []
    for item in items_after(query.get("after") or None, order):
        if (body := shown(item)) is not None:
            found.append(body)
        if len(found) > size:
            break
    return listed(found[:size], has_more=len(found) > size)


def listed(found: list[Mapping[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return the list envelope."""
    return {
        "object": "list",
        "data": found,
        "first_id": found[0]["id"] if found else None,
        "last_id": found[-1]["id"] if found else None,
        "has_more": has_more,
    }


def _limit(query: Mapping[str, str], *, default: int, largest: int) -> int:
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= largest):
        raise ApiError(
            f"limit must be an integer from 1 to {largest:,}, not {text!r:.40}.", param="limit", code="invalid_value"
        )
    return int(text)
