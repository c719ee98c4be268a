"""Infers column types from CSV text: a column is numeric or boolean if every value is.

`00412` and ` 5` are text. Integers of more than 15 digits are floats, unless integers are required.
"""

import re
from collections.abc import Collection
from typing import Any, Literal

import pyarrow as pa

InferredKind = Literal["int", "float", "bool"]
_SPELLINGS: tuple[tuple[InferredKind, re.Pattern[str]], ...] = (
    ("int", re.compile(r"[+-]?(0|[1-9]\d{0,14})")),
    ("float", re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?|[+-]?inf(inity)?|nan", re.I)),
    ("bool", re.compile(r"true|false", re.I)),
)
_WHOLE = re.compile(r"[+-]?\d+")
_ARROW_TYPES: dict[InferredKind, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


def infer_kind(text: str) -> InferredKind | None:
    """Return the kind of value that a text represents; None for plain text."""
    return next((kind for kind, pattern in _SPELLINGS if pattern.fullmatch(text)), None)


def infer_column_type(kinds: Collection[InferredKind | None]) -> pa.DataType:
    """Return the type of a column whose values have these kinds."""
    if set(kinds) == {"int", "float"}:
        return pa.float64()
    one = next(iter(kinds)) if len(kinds) == 1 else None
    return pa.string() if one is None else _ARROW_TYPES[one]


def parse_value(text: str, arrow_type: pa.DataType) -> Any:
    """Parse a text as a value of a column of this type."""
    if pa.types.is_string(arrow_type):
        return text
    if pa.types.is_boolean(arrow_type):
        return text.strip().lower() == "true"
    return int(text) if pa.types.is_integer(arrow_type) else float(text)


def parse_number(text: str) -> int | float | None:
    """Parse a number, integers exactly; None if the text is not a number."""
    if infer_kind(text) not in ("int", "float"):
        return None
    return int(text) if _WHOLE.fullmatch(text) else float(text)
