"""A decode step as a captured CUDA graph, and the weights that it reads.

A captured graph starts a step's thousand kernels in one call. It reads and writes the same memory at each replay: the
tile's arrays, the cache's pages, and the weights as they were when it was captured.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

Result = TypeVar("Result")
_PLAIN_STEPS = 2
"""Steps of a size that run as written first: they compile kernels and allocate what lasts."""


class CapturedStep(Generic[Result]):
    """Runs a step; on a GPU it is captured once for each number of rows.

    On a CPU a replay is a plain call.
    """

    def __init__(self, step: Callable[[], Result], *, device: torch.device) -> None:
        self._step = step
        self._device = device
        self._num_plain: dict[int, int] = {}
        self._replays: dict[int, Callable[[], Result]] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def run(self, rows: int) -> Result:
        if rows in self._replays:
            return self._replays[rows]()
        done = self._num_plain.get(rows, 0)
        if done < _PLAIN_STEPS:
            self._num_plain[rows] = done + 1
            return self._step()
        self._replays[rows] = self._step if self._pool is None else self._captured()
        return self._replays[rows]()

    def _captured(self) -> Callable[[], Result]:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        # Other threads may copy batches meanwhile. Autocast must not keep a cast that was made outside of the graph.
        kind, dtype = self._device.type, torch.get_autocast_dtype(self._device.type)
        is_cast = torch.is_autocast_enabled(kind)
        with torch.cuda.stream(stream), torch.autocast(kind, dtype, enabled=is_cast, cache_enabled=False):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = self._step()
            finally:
                graph.capture_end()
        current.wait_stream(stream)

        def replay() -> Result:
            graph.replay()
            return result

        return replay


@contextmanager
def compute_copies(network: Any) -> Iterator[None]:
    """Replace weights of matrix products by copies in autocast's type on a GPU: autocast casts them at each step."""
    kind = next(network.parameters()).device.type
    if kind != "cuda" or not torch.is_autocast_enabled(kind):
        yield
        return
    dtype = torch.get_autocast_dtype(kind)
    replaced: list[tuple[nn.Module, str, nn.Parameter]] = []
    try:
        for module in network.modules():
            for name, weight in list(module._parameters.items()):
                if isinstance(module, nn.Linear | Conv1D) and weight is not None and weight.dtype == torch.float32:
                    replaced.append((module, name, weight))
                    module._parameters[name] = nn.Parameter(weight.detach().to(dtype), requires_grad=False)
        yield
    finally:
        for module, name, weight in replaced:
            module._parameters[name] = weight
