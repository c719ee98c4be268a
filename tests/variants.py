"""Variants of a test that a slower suite runs, where another one stands for them in the quicker ones."""

from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """Parameters for `make test-slow`."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def soaked(*values: Any) -> list[Any]:
    """Parameters for `make soak`."""
    return [pytest.param(value, marks=pytest.mark.soak) for value in values]
