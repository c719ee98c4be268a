"""A decode step as a captured CUDA graph, and the weights that it reads.

A captured graph starts a step's thousand kernels in one call. It reads and writes the same memory at each replay: the
tile's arrays, the cache's pages, and the weights as they were when it was captured.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from assay.models.graph_capture import GraphCapture, num_waits, recorded_waits

Result = TypeVar("Result")
_PLAIN_STEPS = 2
"""Steps of a size that run as written first: they compile kernels and allocate what lasts."""


class CapturedStep(Generic[Result]):
    """Runs a step; on a GPU it is captured once for each number of rows."""

    def __init__(self, step: Callable[[], Result], capture: GraphCapture | None) -> None:
        """`capture`: None on a CPU, where a replay is a plain call."""
        self._step = step
        self._capture = capture
        self._num_plain: dict[int, int] = {}
        self._replays: dict[int, Callable[[], Result]] = {}

    def run(self, rows: int) -> Result:
        if rows in self._replays:
            return self._replays[rows]()
        done = self._num_plain.get(rows, 0)
        if done < _PLAIN_STEPS:
            self._num_plain[rows] = done + 1
            return self._watched() if done and self._capture is not None else self._step()
        self._replays[rows] = self._step if self._capture is None else self._captured(self._capture)
        return self._replays[rows]()

    def _watched(self) -> Result:
        """Run a plain step; if it makes the host wait, no step is captured: a failed capture damages the allocator."""
        with recorded_waits() as caught:
            result = self._step()
        if num_waits(caught):
            self._capture = None
            _warn_of_plain_steps("the host waits for a value of the GPU")
        return result

    def _captured(self, capture: GraphCapture) -> Callable[[], Result]:
        try:
            result, graph = capture.capture(self._step)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            _warn_of_plain_steps(str(error).partition("\n")[0])
            return self._step

        def replay() -> Result:
            graph.replay()
            return result

        return replay


def _warn_of_plain_steps(reason: str) -> None:
    warnings.warn(
        f"Decode steps are not captured as CUDA graphs: {reason}. Rollouts are the same, but the host starts each "
        "kernel, which is several times as slow (docs/gpu.md).",
        RuntimeWarning,
        stacklevel=3,
    )


@contextmanager
def without_cached_casts(kind: str) -> Iterator[None]:
    """Keep autocast from using a cast that was made outside of a graph, in the device type's current precision."""
    is_cast = torch.is_autocast_enabled(kind)
    with torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=is_cast, cache_enabled=False):
        yield


@contextmanager
def compute_copies(network: Any) -> Iterator[None]:
    """Replace weights of matrix products by copies in autocast's type on a GPU: autocast casts them at each step."""
    weights = _cast_weights(network)
    try:
        for module, name, weight in weights:
            dtype = torch.get_autocast_dtype(weight.device.type)
            module._parameters[name] = nn.Parameter(weight.detach().to(dtype), requires_grad=False)
        yield
    finally:
        for module, name, weight in weights:
            module._parameters[name] = weight


def bytes_of_copies(network: Any) -> int:
    """Return the memory of `compute_copies`."""
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
