"""Suspends torch's deterministic mode around writes that need no order."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def distinct_writes() -> Iterator[None]:
    """Suspend the deterministic mode around writes whose indices are distinct.

    In that mode CUDA sorts the indices of `index_put`, `index_add` and `scatter` and waits for their range, so that
    equal indices are written in one order. Distinct indices have the same result in any order. The mode is off on a
    CPU, where this does nothing.
    """
    if not torch.are_deterministic_algorithms_enabled():
        yield
        return
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True)
