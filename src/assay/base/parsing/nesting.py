"""Limits on the depth and size of JSON and YAML from users.

A recursive parser fails with `RecursionError` at some depth, and code that walks the values may fail earlier. So
both formats are limited to the same depth, far below. YAML aliases may name lists of aliases, so that ten lines
expand to more values than fit into memory: the values that aliases add are counted.
"""

import json
from typing import Any

MAX_DEPTH = 100
"""Nesting depth of lists and objects."""
MAX_ALIASED = 100_000
"""Values that the aliases of a YAML file may add."""
MAX_BITS = 14_000
"""Bits of the largest integer: Python prints at most 4,300 digits."""
TOO_DEEP = f"lists or objects are nested more than {MAX_DEPTH} deep"


class TooDeepError(ValueError):
    """Text whose values are nested too deeply."""

    def __init__(self) -> None:
        super().__init__(TOO_DEEP)


class DuplicateKeyError(ValueError):
    """A JSON object has a key twice, and the standard does not say which one counts."""


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Parse JSON by `json.loads` with its options; raises `TooDeepError`, a `ValueError`."""
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
        inside = (item.values() if isinstance(item, dict) else item for item in level)
        level = [item for values in inside for item in values if isinstance(item, dict | list)]
    return bool(level)


def object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, for `object_pairs_hook`; raises `DuplicateKeyError`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DuplicateKeyError(f"the key {json.dumps(twice)} occurs twice in one object")
    return found
