"""Cursor pagination. A cursor is the id of the last item, and items never change order.

New items therefore do not shift pages, and deleted items are just missing. Items are read lazily.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from fastapi import Request

from assay.serving.api_error import ApiError, not_found
from assay.serving.ids import is_id
from assay.serving.openai.app_state import project_of
from assay.serving.repository import ResourceRepository, StateT
from assay.store.logs.entry import EntryT

Order = Literal["asc", "desc"]
ItemT = TypeVar("ItemT")


def page_of(
    ids: Iterable[str],
    shown: Callable[[str], Mapping[str, Any] | None],
    query: Mapping[str, str],
    *,
    limit: int = 20,
    max_limit: int = 100,
) -> dict[str, Any]:
    """Return a page of items whose ids sort by age (see `page_after`)."""

    def items_after(after: str | None, order: Order) -> Iterable[str]:
        found = sorted(ids, reverse=order == "desc")
        return (
            resource_id
            for resource_id in found
            if after is None or (resource_id < after if order == "desc" else resource_id > after)
        )

    return page_after(items_after, shown, query, limit=limit, max_limit=max_limit)


def page_of_resources(
    repository: ResourceRepository[EntryT, StateT],
    request: Request,
    shape: Callable[[StateT], Mapping[str, Any] | None],
    *,
    owner: str | None = None,
    query: Mapping[str, str] | None = None,
    limit: int = 20,
    max_limit: int = 100,
) -> dict[str, Any]:
    """Return a page of the resources of the client's project (see `page_after`); `owner`: of its list."""
    project = project_of(request)

    def shown(resource_id: str) -> Mapping[str, Any] | None:
        state = repository.find(resource_id, project)
        return None if state is None else shape(state)

    query = request.query_params if query is None else query
    return page_of_ids(repository, owner or project, shown, query, limit=limit, max_limit=max_limit)


def page_of_ids(
    repository: ResourceRepository[EntryT, StateT],
    owner: str,
    shown: Callable[[str], Mapping[str, Any] | None],
    query: Mapping[str, str],
    *,
    limit: int = 20,
    max_limit: int = 100,
) -> dict[str, Any]:
    """Return a page of an owner's resources by their ids (see `page_after`)."""

    def items_after(after: str | None, order: Order) -> Iterable[str]:
        if after is not None and not is_id(repository.id_kind, after):
            raise not_found(repository.id_kind, after, param="after")
        return (repository.newest if order == "desc" else repository.oldest)(owner, after)

    return page_after(items_after, shown, query, limit=limit, max_limit=max_limit)


def page_after(
    items_after: Callable[[str | None, Order], Iterable[ItemT]],
    shown: Callable[[ItemT], Mapping[str, Any] | None],
    query: Mapping[str, str],
    *,
    limit: int = 20,
    max_limit: int = 100,
) -> dict[str, Any]:
    """Return a page. `items_after`: (cursor, order) -> items after it; `shown`: item -> object, or None to skip it.

    `limit`: the default limit. The default order is newest first.
    """
    text = query.get("limit", str(limit))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= max_limit):
        raise ApiError(
            f"limit must be an integer from 1 to {max_limit:,}, not {text!r:.40}.", param="limit", code="invalid_value"
        )
    name = query.get("order", "desc")
    if name not in ("asc", "desc"):
        raise ApiError(f"order must be 'asc' or 'desc', not {name!r:.40}.", param="order", code="invalid_value")
    order: Order = "asc" if name == "asc" else "desc"
    size, found = int(text), list[Mapping[str, Any]]()
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
