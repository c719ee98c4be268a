"""What a judge decided, read from its words: the last JSON object that says it, wherever it stands.

Judges reason before they decide, in LaTeX and in code whose braces are no JSON, and write LaTeX's backslashes
into JSON's strings, where most of them mean nothing.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

MAX_BRACES = 2000
"""That are tried: of an answer of nothing else, each could be read to its end."""
_BACKSLASH = re.compile(r'\\(?P<means>["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_READER = json.JSONDecoder(strict=False)


def label_in(text: str, labels: Sequence[str]) -> str | None:
    """The label of `{"label": ...}`, or the whole answer where it is a label; None otherwise."""
    value = _last_value(text, "label", "result")
    if value is None:
        value = text.strip().strip("\"'.")
    return value if isinstance(value, str) and value in labels else None


def result_in(text: str) -> float | None:
    """The number of `{"result": ...}`, or the whole answer where it is a number; None otherwise."""
    value = _last_value(text, "result")
    try:
        number = float(text if value is None else value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None


def _last_value(text: str, *keys: str) -> Any:
    """The value of the first of `keys` in the last object that has one of them; None where none has."""
    for version in (text, _with_plain_backslashes(text)):
        for tree in reversed(list(_objects(version))):
            for key in keys:
                if tree.get(key) is not None:
                    return tree[key]
    return None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that stand in a text, not those inside of others."""
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
    """Backslashes that mean nothing in JSON stand for themselves."""
    return _BACKSLASH.sub(lambda match: match.group() if match["means"] else r"\\", text)
