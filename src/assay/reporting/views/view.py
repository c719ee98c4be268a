"""The base of views. A view holds the facts about one thing; the terminal, pages, `--json` and HTTP all read
it. One function builds each view from records. Renderers add no facts of their own. docs/json.md is generated
from the views' fields. Where a record has exactly the facts needed, it is used without a view."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, PlainSerializer

from assay.base.clock import utc_text
from assay.records.record import Record


class _Unquoted(str):
    def __repr__(self) -> str:
        return str(self)


class View(BaseModel):
    """Facts about one thing. The docstrings of its fields are its documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def of(cls, fact: object, **others: Any) -> Self:
        """Build a view from an object whose attributes have the fields' names; `others` are the remaining
        fields."""
        shared = {name: getattr(fact, name) for name in _field_names(cls) if name not in others}
        return cls(**shared, **others)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield single values for `repr`; of others only how many there are, or their class."""
        for name, value in self:
            if isinstance(value, tuple | list | Mapping) and value:
                yield name, _Unquoted(f"<{len(value)} values>")
            else:
                yield name, _Unquoted(f"<{type(value).__name__}>") if isinstance(value, BaseModel) else value

    def to_json(self) -> str:
        """Return JSON; infinity and NaN become null."""
        return self.model_dump_json()


@cache
def _field_names(view_class: type[View]) -> tuple[str, ...]:
    return tuple(view_class.model_fields)  # which pydantic looks up slowly


def json_list(parts: Iterable[View | Record]) -> str:
    """Return a JSON list."""
    return f"[{', '.join(part.to_json() for part in parts)}]"


def _tree(record: Record) -> dict[str, Any]:
    return record.to_tree()


UtcTime = Annotated[float, PlainSerializer(utc_text, return_type=str, when_used="json")]
"""Seconds since the epoch; ISO 8601 in UTC in JSON."""

AsWritten = PlainSerializer(_tree, return_type=dict[str, Any], when_used="json")
"""Serializes a record inside a view with its `kind` and `version`."""
