"""What stands in a file, and what pydantic says should stand there, in words for whoever wrote it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from assay.base.units import number_of

SECTION = ("dict_type", "model_type", "model_attributes_type", "dataclass_type")
"""A value stands where keys with values should."""
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
    """`nothing`, `true or false`, `a number`, `text`, `a list` or `an object`; else the name of its type:
    as its writer would say it, not Python's `list`."""
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
    """`a whole number`, `more than 0`, with the cure where it can be read off; None where what pydantic, or our
    own validator, says is as good."""
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
    """What is wrong, as the end of a sentence that begins with the key."""
    phrase = expected(found)  # type: ignore[arg-type]
    if phrase is not None:
        return f"expected {phrase}"
    return str(found["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")


def _number(given: str, *, whole: bool) -> str:
    wanted = "a whole number" if whole else "a number"
    if (written := _NUMBER.fullmatch(given)) is None:
        return wanted
    digits = float(re.sub(r"[,_ ]", "", written["digits"]))
    digits = digits / 100.0 if written["unit"] == "%" else digits
    return f"{wanted} without separator or unit; perhaps {round(digits) if whole else digits:.10g}"
