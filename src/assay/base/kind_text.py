"""What a value that was read from a file is, as its writer would say it: `a list`, not Python's `list`."""

from collections.abc import Mapping, Sequence
from typing import Any


def kind_text(value: Any) -> str:
    """`nothing`, `true or false`, `a number`, `text`, `a list` or `an object`; else the name of its type."""
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
