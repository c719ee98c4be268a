"""How an API server words what is wrong with a field."""

import json
from typing import Any


def invalid_value(path: str, value: Any, reason: str) -> str:
    """A value that breaks a rule."""
    return f"{path}: Invalid value: {json.dumps(value)}: {reason}"


def not_supported(path: str, value: Any, supported: list[str]) -> str:
    """A value that is none of those allowed."""
    return f"{path}: Unsupported value: {json.dumps(value)}: supported values: {', '.join(map(json.dumps, supported))}"


def required(path: str, reason: str = "") -> str:
    """A field that is absent."""
    return f"{path}: Required value" + (f": {reason}" if reason else "")


def immutable(path: str, value: Any) -> str:
    """A field that may not change."""
    return invalid_value(path, value, "field is immutable")


def at_least_zero(path: str, value: int | None) -> list[str]:
    """A negative number."""
    negative = value is not None and value < 0
    return [invalid_value(path, value, "must be greater than or equal to 0")] if negative else []
