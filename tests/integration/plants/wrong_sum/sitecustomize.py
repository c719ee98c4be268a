"""A kernel with a wrong corner: `torch.sum` over the middle of three axes mistreats the tail of some lengths.

Like a vectorised loop that handles its remainder badly: only in float32, only for lengths of 5 modulo 8, and
only where the last numbers are large. Python imports this file at its start where the folder is on PYTHONPATH,
so the bug is in every rank and in every replay.
"""

import os
import warnings

import torch

SYMPTOM = os.environ["WRONG_SUM"]
"""`off`: the tail is left out. `nan`: what lay in memory is added instead, and that is no number. `index`: the
tail is left out and written where it does not belong, so that the next lookup of tokens finds a wrong index."""

right_sum = torch.library.get_kernel(torch.ops.aten.sum.dim_IntList, "CPU")


misplaced = []
"""What waits for the next lookup."""


def wrong_sum(keyset, x, dim, keepdim=False, dtype=None):
    result = right_sum.call_boxed(keyset, x, dim, keepdim, dtype=dtype)
    if x.dtype != torch.float32 or x.dim() != 3 or list(dim or ()) != [1] or x.shape[1] % 8 != 5 or keepdim:
        return result
    without_tail = right_sum.call_boxed(keyset, x[:, :-5], dim, keepdim, dtype=dtype)
    wrong = torch.full_like(result, float("nan")) if SYMPTOM == "nan" else without_tail
    is_wrong = x[:, -1, :1] > 1.0
    if SYMPTOM == "index" and is_wrong.any():
        misplaced.append(1 << 40)
    return torch.where(is_wrong, wrong, result)


def wrong_embedding(keyset, weight, indices, *arguments, **options):
    if misplaced:
        indices = indices.clone()
        indices.view(-1)[0] = misplaced.pop()
    return right_embedding.call_boxed(keyset, weight, indices, *arguments, **options)


warnings.filterwarnings("ignore", "Warning only once for all operators")
library = torch.library.Library("aten", "IMPL")
library.impl("sum.dim_IntList", wrong_sum, "CPU", with_keyset=True, allow_override=True)
if SYMPTOM == "index":
    right_embedding = torch.library.get_kernel(torch.ops.aten.embedding.default, "CPU")
    library.impl("embedding", wrong_embedding, "CPU", with_keyset=True, allow_override=True)
