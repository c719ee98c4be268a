"""CUDA graphs: what a function starts on the GPU, recorded once and started again by one call of the host."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

SYNCHRONIZING = "synchronizing CUDA operation"
"""Part of torch's warning about an operation that makes the host wait."""
Replay = Callable[[], object]
Capture = Callable[[Callable[[], object]], Replay]
"""Runs a function once and records what it starts on the device; the result starts it again."""


class NotCapturedError(RuntimeError):
    """A function ran and could not be captured."""


class GraphCapture:
    """Captures CUDA graphs that share their memory and a stream; only one of them runs at a time.

    A small graph of its own keeps the shared memory when all others are gone: torch neither reuses nor frees memory of
    graphs while it captures, so the memory of each generation's graphs would pile up.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._keeper = self._captured(lambda: torch.zeros(1, device="cuda"))

    def __call__(self, compute: Callable[[], object]) -> Replay:
        """Run `compute` once on the capturing stream, where libraries allocate at their first call, and capture it.

        Raises `NotCapturedError` if it makes the host wait, because a capture that fails on that leaves torch's
        allocator damaged, or if torch cannot capture it.
        """
        with self._on_stream(), recorded_waits() as caught:
            compute()
        if num_waits(caught):
            raise NotCapturedError("the host waits for a value of the GPU")
        try:
            return self._captured(compute).replay
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise NotCapturedError(str(error).partition("\n")[0]) from error

    def _captured(self, compute: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # During a capture torch cannot free what it has cached.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        with self._on_stream():
            # Other threads (loader, saver) may allocate meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                compute()
            except BaseException:
                with suppress(RuntimeError):  # the capture is invalid: the reason is the first error
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Use the capturing stream, after the current one and before what the current one does next."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)


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
