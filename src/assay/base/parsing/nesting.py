"""Text that users wrote becomes values that all code behind can follow: JSON and YAML of bounded depth.

A parser that calls itself ends in a `RecursionError` at some depth, and what it still reads may end those who
walk through it later. So both refuse the same depth, long before. Aliases of YAML may name lists of aliases, by
which ten lines become more values than a memory has room for: what they add is counted.
"""

import json
from typing import Any

MAX_DEPTH = 100
"""Lists and objects in one another."""
MAX_ALIASED = 100_000
"""Values of a YAML file that stand there by aliases alone."""
MAX_BITS = 14_000
"""The largest whole number: Python writes no more than 4,300 digits."""
TOO_DEEP = f"lists or objects more than {MAX_DEPTH} deep in one another"


class TooDeepError(ValueError):
    """Text whose values are nested too deeply."""

    def __init__(self) -> None:
        super().__init__(TOO_DEEP)


class DuplicateKeyError(ValueError):
    """An object of JSON has a key twice: which of them counts is not said."""


def parse_json(text: str | bytes, **options: Any) -> Any:
    """What JSON says, by `json.loads` with its options. Raises `TooDeepError`, a `ValueError`."""
    text = text.decode() if isinstance(text, bytes) else text
    try:
        value = json.loads(text, **options)
    except RecursionError:
        raise TooDeepError from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(value):
        raise TooDeepError
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inside for each in values if isinstance(each, dict | list)]
    return bool(level)


def object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, for `object_pairs_hook`; `DuplicateKeyError` where it has a key twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DuplicateKeyError(f"the key {json.dumps(twice)} stands twice in one object")
    return found
