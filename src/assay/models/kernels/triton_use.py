"""Whether Triton's kernels run."""

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch

_IS_ASSUMED = ContextVar("triton_is_assumed", default=False)


def runs_triton(device: torch.device) -> bool:
    """Return True for a GPU if Triton is installed; warn once if it is not."""
    return _IS_ASSUMED.get() or (device.type == "cuda" and _is_installed())


@contextmanager
def assumed_triton(is_assumed: bool) -> Iterator[None]:
    """Choose operators as on a GPU with Triton, for models that have no numbers."""
    token = _IS_ASSUMED.set(is_assumed)
    try:
        yield
    finally:
        _IS_ASSUMED.reset(token)


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
