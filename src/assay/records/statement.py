"""A statement without words: reporting has the sentence of each code."""

from typing import Any

from pydantic import Field

from assay.records.record import Record


class Statement(Record):
    """A statement as a code with its numbers and names."""

    code: str
    values: dict[str, Any] = Field(default_factory=dict)
