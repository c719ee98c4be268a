"""Descriptions of values and of pydantic's errors for the author of a configuration file."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from assay.base.units import number_of

SECTION = ("dict_type", "model_type", "model_attributes_type", "dataclass_type")
"""Error types for a scalar in place of a section."""
_PHRASES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list, in brackets",
    "list_type": "a list, in brackets",
    "set_type": "a list, in brackets",
    "none_required": "null",
    **dict.fromkeys(SECTION, "keys with values"),
}
_BOUNDS = {
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "less than {lt:g}",
    "less_than_equal": "{le:g} or less",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "a text that matches {pattern}",
}
_NUMBER = re.compile(r"\s*(?P<digits>\d[\d,_ ]*(?:\.\d+)?)\s*(?P<unit>%|[a-z]*)\s*", re.IGNORECASE)


def kind_text(value: Any) -> str:
    """Return the kind of a value in the terms of YAML and JSON; for other types, the type's name."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case bytes():
            return "bytes"
        case Mapping():
            return "an object"
        case Sequence():
            return "a list"
    return type(value).__name__


def expected(found: ErrorDetails) -> str | None:
    """Return what was expected, e.g. `more than 0`, with an evident fix; None if pydantic's message is clear."""
    kind, context = found["type"], found.get("ctx", {})
    if kind in ("int_parsing", "int_from_float", "float_parsing"):
        return _number(str(found["input"]), whole=kind != "float_parsing")
    if kind in ("too_short", "too_long"):
        bound, word = ("min_length", "more") if kind == "too_short" else ("max_length", "less")
        return f"{number_of(context[bound], 'item')} or {word}"
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**context)
    return _PHRASES.get(kind)


def message_of(found: ErrorDetails | Mapping[str, Any]) -> str:
    """Return what is wrong, as the end of a sentence that begins with the key."""
    phrase = expected(found)  # type: ignore[arg-type]
    if phrase is not None:
        return f"expected {phrase}"
    return str(found["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")


def _number(text: str, *, whole: bool) -> str:
    expected_kind = "a whole number" if whole else "a number"
    if (written := _NUMBER.fullmatch(text)) is None:
        return expected_kind
    digits = float(re.sub(r"[,_ ]", "", written["digits"]))
    digits = digits / 100.0 if written["unit"] == "%" else digits
    return f"{expected_kind} without separator or unit; perhaps {round(digits) if whole else digits:.10g}"
