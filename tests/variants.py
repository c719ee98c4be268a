"""Variants of a slow test that only the soak runs, where another one stands for them in `make test-slow`."""

from typing import Any

import pytest


def soaked(*values: Any) -> list[Any]:
    """Parameters for `make soak`."""
    return [pytest.param(value, marks=pytest.mark.soak) for value in values]
