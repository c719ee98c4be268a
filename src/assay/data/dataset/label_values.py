"""Infers the kind of labels (0 and 1, class names, or a number) from the values of all rows.

0, 1, "0", "1", true, false     binary     int8
text, or few whole numbers      classes    text: a class is its name, in shards, recipes and reports alike
any other finite number         number     float64
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from assay.base.errors import DataError
from assay.base.value_text import kind_text
from assay.data.dataset.raw.type_inference import parse_number

LabelKind = Literal["binary", "classes", "number"]
MAX_CLASSES = 1_000
FEW = 20
"""Up to so many distinct integers are classes, unless `number` is requested."""
COLUMN_TYPES: dict[LabelKind, pa.DataType] = {
    "binary": pa.int8(), "classes": pa.string(), "number": pa.float64(),
}  # fmt: skip
ValueType = Literal["binary", "whole", "number", "text"]


@dataclass
class LabelFacts:
    """Types and counts of the labels of some rows."""

    types: dict[ValueType, str] = field(default_factory=dict)
    """Type of value -> first location."""
    written: dict[str, str] = field(default_factory=dict)
    """`a number` or `text` -> first location, for files with typed values (not CSV)."""
    counts: Counter[str] = field(default_factory=Counter)
    """Rows of each class name, for at most `MAX_CLASSES` + 1 names."""

    def add(self, value: Any, where: str, *, field: str, is_untyped: bool) -> None:
        kind = _type_of(value, field, where, is_untyped=is_untyped)
        self.types.setdefault(kind, where)
        if kind != "binary" and not is_untyped:
            self.written.setdefault("text" if kind == "text" else "a number", where)
        self._count(class_name(value), 1)

    def merge(self, later: "LabelFacts") -> None:
        for kind, where in later.types.items():
            self.types.setdefault(kind, where)
        for written, where in later.written.items():
            self.written.setdefault(written, where)
        for name, count in later.counts.items():
            self._count(name, count)

    def _count(self, name: str, count: int) -> None:
        if name in self.counts or len(self.counts) <= MAX_CLASSES:
            self.counts[name] += count


def is_unlabelled(value: Any) -> bool:
    """Return whether a label is missing: null, blank text, or NaN."""
    return value is None or (isinstance(value, str) and not value.strip()) or value != value


def class_name(value: Any) -> str:
    """Return the class name of a value: `3` and `3.0` are one class, and true is 1."""
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    return str(value).strip()


def label_value(value: Any, kind: LabelKind) -> int | str | float:
    """Convert a label to the value of a column of this kind."""
    if kind == "binary":
        return int(float(value))
    return float(value) if kind == "number" else class_name(value)


def kind_of_labels(facts: LabelFacts, requested: LabelKind | Literal["auto"], *, field: str) -> LabelKind:
    """Return the kind of all labels. Raises `DataError` if they do not fit the requested kind."""
    kind = requested if requested != "auto" else _inferred_label_kind(facts)
    others = [where for value_type, where in facts.types.items() if value_type != "binary"]
    if kind == "binary" and others:
        name = next((name for name in facts.counts if name not in ("0", "1")), "something else")
        raise DataError(
            f"{others[0]}: field '{field}' is {name}; expected 0 or 1. Map the labels first, name the right "
            "field (--label), or say what they are (--label-kind classes, or number)."
        )
    if kind == "number" and "text" in facts.types:
        raise DataError(
            f"{facts.types['text']}: field '{field}' is text, not a number. Fix the row, name the right field "
            "(--label), or learn it as names (--label-kind classes)."
        )
    if kind == "classes":
        _check_classes(facts, field)
    return kind


def _inferred_label_kind(facts: LabelFacts) -> LabelKind:
    types = set(facts.types)
    if types <= {"binary"}:
        return "binary"
    if "text" in types or (types <= {"binary", "whole"} and len(facts.counts) <= FEW):
        return "classes"
    return "number"


def _check_classes(facts: LabelFacts, field: str) -> None:
    if len(facts.counts) > MAX_CLASSES:
        some = ", ".join(repr(name[:40]) for name in list(facts.counts)[:3])
        raise DataError(
            f"field '{field}' has more than {MAX_CLASSES:,} different values ({some}, …): too many for "
            "classes. Name another field (--label)"
            + (", or learn it as a number (--label-kind number)." if "text" not in facts.types else ".")
        )
    if len(facts.counts) == 1:
        (name,) = facts.counts
        raise DataError(
            f"field '{field}' is {name!r} in all rows that have it: there are no classes to distinguish. Name "
            "another "
            "field (--label), or build without labels (--no-label)."
        )
    if len(facts.written) > 1:
        (one, where), (other, other_where) = facts.written.items()
        raise DataError(
            f"{other_where}: field '{field}' is {other} here and {one} in {where}. Make it all text or all numbers."
        )


def _type_of(value: Any, field: str, where: str, *, is_untyped: bool) -> ValueType:
    if isinstance(value, str):
        if value in ("0", "1"):
            return "binary"
        number = parse_number(value.strip()) if is_untyped else None
        if number is None or not _is_quantity(number):  # `nan`, `inf` and long identifiers are class names
            return "text"
        value = number
    if not isinstance(value, int | float):
        raise DataError(
            f"{where}: field '{field}' is {kind_text(value)}; a label is text, a number, true or false. "
            "Flatten it first, or name another field (--label)."
        )
    if not _is_quantity(value):
        raise DataError(
            f"{where}: field '{field}' is {value}; a numeric label must be finite and within 64 bits. Fix or "
            "drop "
            "the row, or leave its label empty: then it is left out."
        )
    if value in (0, 1):
        return "binary"
    return "whole" if float(value).is_integer() else "number"


def _is_quantity(number: float) -> bool:
    return -(2.0**63) <= number < 2.0**63 if isinstance(number, int) else math.isfinite(number)
