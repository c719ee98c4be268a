"""Lists, page by page: a cursor is the id of the last thing that was seen, and things keep their order for
ever.

So what comes in front of a page while somebody reads on moves nothing, and what is deleted is simply not there.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from assay.serving.refusal import RefusedError

Order = Literal["asc", "desc"]


def page_of(
    ids: Iterable[str],
    shown: Callable[[str], Mapping[str, Any] | None],
    query: Mapping[str, str],
    *,
    limit: int,
    max_limit: int,
) -> dict[str, Any]:
    """One page of things whose ids sort by age; `shown` makes one of an id, None where it is not to be seen.

    `limit`: where none is asked for. The newest come first, unless `order` says otherwise.
    """
    size = _limit(query, default=limit, largest=max_limit)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RefusedError(f"order is 'asc' or 'desc', not {order!r:.40}.", param="order", code="invalid_value")
    after = query.get("after")
    found: list[Mapping[str, Any]] = []
    for each in sorted(ids, reverse=order == "desc"):
        if after and (each >= after if order == "desc" else each <= after):
            continue
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
