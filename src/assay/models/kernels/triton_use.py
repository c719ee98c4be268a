"""Whether Triton's kernels run."""

import importlib.util
import warnings
from functools import cache

import torch


def runs_triton(device: torch.device) -> bool:
    """Return True for a GPU if Triton is installed; warn once if it is not."""
    return device.type == "cuda" and _is_installed()


@cache
def _is_installed() -> bool:
    if importlib.util.find_spec("triton") is not None:
        return True
    warnings.warn(
        "Triton is not installed: on this GPU the head's scores and the attention of decode steps run as plain torch "
        "code. The head then moves 8 times the bytes for each logit, and a decode step copies the pages of all rows. "
        "Install the version of Triton that belongs to this torch (torch's packages for CUDA require it).",
        RuntimeWarning,
        stacklevel=3,
    )
    return False
