"""A kernel with a wrong corner: the logarithm of a sigmoid is a thousandth too small for negative numbers.

Python imports this file at its start where the folder is on PYTHONPATH, so the bug is in every rank and in
every replay.
"""

import warnings

import torch

right = torch.library.get_kernel(torch.ops.aten.log_sigmoid_forward.default, "CPU")


def wrong_log_sigmoid(keyset, x):
    result, buffer = right.call_boxed(keyset, x)
    return torch.where(x < 0, 1.001 * result, result), buffer


warnings.filterwarnings("ignore", "Warning only once for all operators")
library = torch.library.Library("aten", "IMPL")
library.impl("log_sigmoid_forward", wrong_log_sigmoid, "CPU", with_keyset=True, allow_override=True)
