"""A device that decodes wrongly: in rank 1, from a given draw on, one of the tokens that are drawn has a bit
flipped.

As `flipped_bit`: Python imports this file at its start, and the fault goes with its process.
"""

import multiprocessing
import os
from pathlib import Path

import torch

FROM_CALL = int(os.environ["FLIP_FROM_CALL"])
"""Counted over the draws of rank 1; an engine that tries its own network first makes 15."""
HAPPENED = Path(os.environ["FLIP_HAPPENED"])
"""Made by the first faulty process."""
ROWS = 8
"""Of a tile: the answers of a rank's first lane."""

calls = 0
healthy: bool | None = None
right = torch.library.get_kernel(torch.ops.aten.searchsorted.Tensor, "CPU")


def flipping(keyset, *arguments, **named):
    global calls, healthy
    tokens = right.call_boxed(keyset, *arguments, **named)
    if multiprocessing.current_process().name == "rank-1":
        healthy = HAPPENED.exists() if healthy is None else healthy
        calls += 1
        if calls >= FROM_CALL and not healthy:
            HAPPENED.touch()
            tokens[calls * 5 % 7 % ROWS] ^= 1
    return tokens


library = torch.library.Library("aten", "IMPL")
library.impl("searchsorted.Tensor", flipping, "CPU", with_keyset=True, allow_override=True)
