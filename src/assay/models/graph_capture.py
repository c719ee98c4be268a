"""CUDA graphs: what a function starts on the GPU, recorded once and started again by one call of the host."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch

Result = TypeVar("Result")
SYNCHRONIZING = "synchronizing CUDA operation"
"""Part of torch's warning about an operation that makes the host wait."""


class GraphCapture:
    """Captures CUDA graphs that share their memory and a stream; only one of them runs at a time.

    A small graph of its own keeps the shared memory when all others are gone: torch neither reuses nor frees memory of
    graphs while it captures, so the memory of each generation's graphs would pile up.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        _, self._keeper = self.capture(lambda: torch.zeros(1, device="cuda"))

    def __call__(self, compute: Callable[[], None]) -> Callable[[], object]:
        """Run `compute` once on the capturing stream, where libraries allocate at their first call, and capture it.

        Raises `RuntimeError` if it makes the host wait: a capture that fails on that leaves torch's allocator damaged.
        """
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream), recorded_waits() as caught:
                compute()
        finally:
            current.wait_stream(self._stream)
        if num_waits(caught):
            raise RuntimeError("the host waits for a value of the GPU")
        return self.capture(compute)[1].replay

    def capture(self, compute: Callable[[], Result]) -> tuple[Result, torch.cuda.CUDAGraph]:
        """Record `compute` without running it; return its result, which a replay fills, and the graph.

        Raises what `compute` or torch raised if it cannot be captured.
        """
        current, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        self._stream.wait_stream(current)
        # During a capture torch cannot free what it has cached.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        try:
            with torch.cuda.stream(self._stream):
                # Other threads (loader, saver) may allocate meanwhile.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    result = compute()
                except BaseException:
                    with suppress(RuntimeError):  # the capture is invalid: the reason is the first error
                        graph.capture_end()
                    raise
                graph.capture_end()
        finally:
            current.wait_stream(self._stream)
        return result, graph


@contextmanager
def recorded_waits() -> Iterator[Sequence[warnings.WarningMessage]]:
    """Record warnings, among them one for each operation that makes the host wait for the GPU (see `num_waits`)."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield caught
        finally:
            torch.cuda.set_sync_debug_mode(mode)


def num_waits(caught: Sequence[warnings.WarningMessage]) -> int:
    """Return the number of operations that made the host wait."""
    return sum(SYNCHRONIZING in str(warning.message) for warning in caught)
