"""What a view is: the facts about one thing, said once, for a terminal, a page, `--json` and HTTP alike.

A view is made by one function, from records. Screens and pages draw it and add no fact of their own, so no
two of them can disagree; its JSON is what `--json` prints, and docs/json.md is made of its fields. Where a
record already is what is to be shown, the record is shown and there is no view.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, PlainSerializer

from assay.base.clock import utc_text
from assay.records.record import Record


class View(BaseModel):
    """The facts about one thing. A field's docstring is its documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def of(cls, fact: object, **others: Any) -> Self:
        """From a fact whose attributes have the fields' names; `others` are the fields that it has not."""
        shared = {name: getattr(fact, name) for name in cls.model_fields if name not in others}
        return cls(**shared, **others)

    def to_json(self) -> str:
        """What `--json` prints. JSON knows no infinity and no NaN: they are null."""
        return self.model_dump_json()


def json_list(parts: Iterable[View | Record]) -> str:
    """Several of them as a JSON list."""
    return f"[{', '.join(part.to_json() for part in parts)}]"


def _tree(record: Record) -> dict[str, Any]:
    return record.to_tree()


UtcTime = Annotated[float, PlainSerializer(utc_text, return_type=str, when_used="json")]
"""Seconds since the epoch; in JSON ISO 8601 in UTC, to the second."""

AsWritten = PlainSerializer(_tree, return_type=dict[str, Any], when_used="json")
"""The form of a record inside a view: with its `kind` and `version`, as where it stands alone."""
