"""A store with injected write failures, for drills."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Literal

from assay.base.errors import StoreError, StoreFullError
from assay.store.keys import ObjectInfo
from assay.store.objects import ObjectStore

StoreFault = Literal["error", "stall", "drop", "full_disk"]
"""A write is rejected | takes `STALL_S` | succeeds, but its response is lost | finds no space."""

STALL_S = 3.0


class FlakyStore:
    """Wraps `inner` and fails the next writes on request."""

    def __init__(self, inner: ObjectStore) -> None:
        self.url = inner.url
        self._inner = inner
        self._how: StoreFault = "error"
        self._writes_to_fail = 0
        self._on_failure: Callable[[], None] = lambda: None

    def fail_next(self, how: StoreFault, num_writes: int, on_failure: Callable[[], None]) -> None:
        """Make the next `num_writes` writes fail; `on_failure` is called before each."""
        self._how, self._writes_to_fail, self._on_failure = how, num_writes, on_failure

    def get(self, key: str) -> bytes:
        """See `ObjectStore`; so for all that follows."""
        return self._inner.get(key)

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        return self._inner.get_ranges(key, starts, ends)

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self._writing(key):
            self._inner.put(key, data)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        with self._writing(key):
            return self._inner.put_if_absent(key, data)

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        return self._inner.list(prefix, after, limit)

    def exists(self, key: str) -> bool:
        return self._inner.exists(key)

    def num_bytes(self, key: str) -> int:
        return self._inner.num_bytes(key)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def sweep_unfinished(self, is_dead: Callable[[str, float], bool], is_swept: Callable[[str], bool]) -> None:
        self._inner.sweep_unfinished(is_dead, is_swept)

    @contextmanager
    def open_reader(self, key: str) -> Iterator[IO[bytes]]:
        with self._inner.open_reader(key) as reader:
            yield reader

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        with self._writing(key), self._inner.open_writer(key) as writer:
            yield writer

    @contextmanager
    def _writing(self, key: str) -> Iterator[None]:
        if self._writes_to_fail <= 0:
            yield
            return
        self._writes_to_fail -= 1
        self._on_failure()
        if self._how == "error":
            raise StoreError(f"{self.url}/{key}: planned fault: the server refused the write (503).")
        if self._how == "full_disk":
            raise StoreFullError(f"{self.url}/{key}: planned fault: no space left on the device.")
        if self._how == "stall":
            time.sleep(STALL_S)
        yield
        if self._how == "drop":
            raise StoreError(
                f"{self.url}/{key}: planned fault: the connection was lost; nobody knows if it was written."
            )
