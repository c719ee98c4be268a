"""Parses a judge's output: the last JSON object with a verdict, anywhere in the text.

Judges reason before they decide, in LaTeX and code whose braces are not JSON, and write LaTeX backslashes into
JSON strings, where most of them are invalid escapes.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

MAX_BRACES = 2000
"""Maximum number of braces tried, because parsing takes quadratic time on a text of braces."""
_BACKSLASH = re.compile(r'\\(?P<means>["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_READER = json.JSONDecoder(strict=False)


def label_in(text: str, labels: Sequence[str]) -> str | None:
    """Return the label of `{"label": ...}`, or the whole text if it is a label; None otherwise."""
    value = _last_value(text, "label", "result")
    if value is None:
        value = text.strip().strip("\"'.")
    return value if isinstance(value, str) and value in labels else None


def result_in(text: str) -> float | None:
    """Return the number of `{"result": ...}`, or the whole text if it is a number; None otherwise."""
    value = _last_value(text, "result")
    try:
        number = float(text if value is None else value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None


def _last_value(text: str, *keys: str) -> Any:
    """Return the value of the first of `keys` in the last object that has one of them; None if none has."""
    for version in (text, _with_plain_backslashes(text)):
        for tree in reversed(list(_objects(version))):
            for key in keys:
                if tree.get(key) is not None:
                    return tree[key]
    return None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    position = text.find("{")
    for _ in range(MAX_BRACES):
        if position < 0:
            return
        try:
            tree, end = _READER.raw_decode(text, position)
            yield tree
        except (ValueError, RecursionError):
            end = position + 1
        position = text.find("{", end)


def _with_plain_backslashes(text: str) -> str:
    """Double the backslashes that are invalid escapes in JSON."""
    return _BACKSLASH.sub(lambda match: match.group() if match["means"] else r"\\", text)
