"""A decode step as a captured CUDA graph, and the weights that it reads.

A captured graph starts a step's thousand kernels in one call. It reads and writes the same memory at each replay: the
tile's arrays, the cache's pages, and the weights as they were when it was captured.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from assay.models.graph_capture import Capture, NotCapturedError, Replay


class CapturedStep:
    """Runs a step. For each number of rows, the first call is plain, to compile kernels; the second is captured."""

    def __init__(self, step: Callable[[], object], capture: Capture) -> None:
        self._step = step
        self._capture: Capture | None = capture
        self._replays: dict[int, Replay | None] = {}

    def run(self, rows: int) -> None:
        if replay := self._replays.get(rows):
            replay()
        elif rows in self._replays and self._capture is not None:
            self._replays[rows] = self._captured(self._capture)
        else:
            self._replays[rows] = None
            self._step()

    def _captured(self, capture: Capture) -> Replay:
        """Run the step and capture it; if that fails, no further step is captured."""
        try:
            return capture(self._step)
        except NotCapturedError as error:
            self._capture = None
            warnings.warn(
                f"Decode steps are not captured as CUDA graphs: {error}. Rollouts are the same, but the host starts "
                "each kernel, which is several times as slow (docs/gpu.md).",
                RuntimeWarning,
                stacklevel=2,
            )
            return self._step


@contextmanager
def decode_weights(network: Any) -> Iterator[None]:
    """Replace weights of matrix products by copies in autocast's type on a GPU: autocast casts them at each step.

    Other casts are not cached: a graph must not read one that was made outside of it.
    """
    weights, kind = _cast_weights(network), next(network.parameters()).device.type
    dtype, is_cast = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    try:
        for module, name, weight in weights:
            module._parameters[name] = nn.Parameter(weight.detach().to(dtype), requires_grad=False)
        with torch.autocast(kind, dtype, enabled=is_cast, cache_enabled=False):
            yield
    finally:
        for module, name, weight in weights:
            module._parameters[name] = weight


def bytes_of_copies(network: Any) -> int:
    """Return the memory of the copies of `decode_weights`."""
    weights = _cast_weights(network)
    return sum(weight.numel() * torch.get_autocast_dtype(weight.device.type).itemsize for _, _, weight in weights)


def _cast_weights(network: Any) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Return the weights on a GPU that autocast would cast, each with its module and name."""
    kind = next(network.parameters()).device.type
    if kind != "cuda" or not torch.is_autocast_enabled(kind):
        return []
    return [
        (module, name, weight)
        for module in network.modules()
        if isinstance(module, nn.Linear | Conv1D)
        for name, weight in module._parameters.items()
        if weight is not None and weight.dtype == torch.float32
    ]
