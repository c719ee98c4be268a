"""Lists, page by page: a cursor is the id of the last thing that was seen, and things keep their order for
ever.

So what comes in front of a page while somebody reads on moves nothing, and what is deleted is simply not there.
A page asks for what it shows and no more, so things are given as they are asked for: those behind a cursor.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from assay.serving.ids import is_id
from assay.serving.job_repository import Shelf
from assay.serving.refusal import RefusedError, not_found
from assay.store.logs.entry import EntryT

Order = Literal["asc", "desc"]
ThingT = TypeVar("ThingT")
StateT = TypeVar("StateT")


def page_of(
    ids: Iterable[str],
    shown: Callable[[str], Mapping[str, Any] | None],
    query: Mapping[str, str],
    *,
    limit: int,
    max_limit: int,
) -> dict[str, Any]:
    """One page of a few things whose ids sort by age; see `page_behind`."""

    def behind(after: str | None, order: Order) -> Iterable[str]:
        found = sorted(ids, reverse=order == "desc")
        return (each for each in found if after is None or (each < after if order == "desc" else each > after))

    return page_behind(behind, shown, query, limit=limit, max_limit=max_limit)


def page_of_shelf(
    shelf: Shelf[EntryT, StateT],
    owner: str,
    shown: Callable[[str], Mapping[str, Any] | None],
    query: Mapping[str, str],
    *,
    limit: int,
    max_limit: int,
) -> dict[str, Any]:
    """One page of an owner's things on a shelf; see `page_behind`."""

    def behind(after: str | None, order: Order) -> Iterable[str]:
        if after is not None and not is_id(shelf.id_kind, after):
            raise not_found(shelf.id_kind, after, param="after")
        return (shelf.newest if order == "desc" else shelf.oldest)(owner, after)

    return page_behind(behind, shown, query, limit=limit, max_limit=max_limit)


def page_behind(
    behind: Callable[[str | None, Order], Iterable[ThingT]],
    shown: Callable[[ThingT], Mapping[str, Any] | None],
    query: Mapping[str, str],
    *,
    limit: int,
    max_limit: int,
) -> dict[str, Any]:
    """One page of the things behind a cursor; `shown` makes the answer of one, None where it is not to be seen.

    `limit`: where none is asked for. The newest come first, unless `order` says otherwise.
    """
    size = _limit(query, default=limit, largest=max_limit)
    asked = query.get("order", "desc")
    if asked not in ("asc", "desc"):
        raise RefusedError(f"order is 'asc' or 'desc', not {asked!r:.40}.", param="order", code="invalid_value")
    order: Order = "asc" if asked == "asc" else "desc"
    found: list[Mapping[str, Any]] = []
    for each in behind(query.get("after") or None, order):
        if (thing := shown(each)) is not None:
            found.append(thing)
        if len(found) > size:
            break
    return listed(found[:size], has_more=len(found) > size)


def listed(found: list[Mapping[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """The envelope of a page."""
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
        raise RefusedError(
            f"limit is a whole number from 1 to {largest:,}, not {text!r:.40}.",
            param="limit",
            code="invalid_value",
        )
    return int(text)
