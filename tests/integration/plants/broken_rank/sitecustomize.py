"""Something in rank 1 breaks once, in the backward pass of a given call: as `BREAKS` says, and not again.

Python imports this file at its start where the folder is on PYTHONPATH, so it lies below everything of ours.
"""

import multiprocessing
import os
from pathlib import Path

import torch

BREAKS = os.environ["BREAKS"]
AT_CALL = int(os.environ["BREAKS_AT_CALL"])
HAPPENED = Path(os.environ["BREAKS_HAPPENED"])
"""Made by the process that breaks: the next attempt's rank 1 is healthy."""

calls = 0


def breaking(gradient, indices, num_weights, padding_idx, scale_grad_by_freq):
    global calls
    if multiprocessing.current_process().name == "rank-1":
        calls += 1
        if calls == AT_CALL and not HAPPENED.exists():
            HAPPENED.touch()
            break_down()
    result = torch.zeros(num_weights, gradient.shape[-1]).index_add_(
        0, indices.reshape(-1), gradient.reshape(-1, gradient.shape[-1])
    )
    if padding_idx >= 0:
        result[padding_idx] = 0
    return result


def break_down() -> None:
    if BREAKS == "exception":
        raise ValueError("a surprise at 0x7f3a, in somewhere/else.py")
    if BREAKS == "out_of_memory":
        torch.empty(1 << 58, dtype=torch.uint8)
    if BREAKS == "crashed":
        os.abort()
    if BREAKS == "exited":
        os._exit(3)
    raise AssertionError(BREAKS)


library = torch.library.Library("aten", "IMPL")
library.impl("embedding_dense_backward", breaking, "CPU", allow_override=True)
