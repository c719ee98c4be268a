"""A store whose machine loses power, for simulations.

Each write counts, and when none are left, the write under way happens wholly, or not at all, or (for files that
are written front to back, on a store without atomic writes) in part; then everything raises `PowerCut`.
"""

import io
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from assay.store.keys import ObjectInfo
from assay.store.objects import ObjectStore


class PowerCut(BaseException):
    """The machine is gone. Not an `Exception`: nothing may catch it and go on."""


class PowerCutStore:
    """Passes everything to `inner` until the power is cut."""

    def __init__(self, inner: ObjectStore, *, writes_left: int, rng: random.Random) -> None:
        self.url = inner.url
        self._inner = inner
        self._writes_left = writes_left
        self._rng = rng

    def get(self, key: str) -> bytes:
        """See `ObjectStore`; so for all that follows."""
        self._check()
        return self._inner.get(key)

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        self._check()
        return self._inner.get_ranges(key, starts, ends)

    def put(self, key: str, data: bytes | memoryview) -> None:
        if self._survives():
            self._inner.put(key, data)
            return
        if self._rng.random() < 0.5:
            self._inner.put(key, bytes(data)[: self._rng.randrange(len(data) + 1)])
        raise PowerCut

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        if self._survives():
            return self._inner.put_if_absent(key, data)
        if self._rng.random() < 0.5:  # it happened, but nobody heard
            self._inner.put_if_absent(key, data)
        raise PowerCut

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        self._check()
        return self._inner.list(prefix, after, limit)

    def exists(self, key: str) -> bool:
        self._check()
        return self._inner.exists(key)

    def num_bytes(self, key: str) -> int:
        self._check()
        return self._inner.num_bytes(key)

    def delete(self, key: str) -> None:
        if self._survives():
            self._inner.delete(key)
            return
        raise PowerCut

    def sweep_unfinished(self, is_dead: Callable[[str, float], bool], is_swept: Callable[[str], bool]) -> None:
        self._check()
        self._inner.sweep_unfinished(is_dead, is_swept)

    @contextmanager
    def open_reader(self, key: str) -> Iterator[IO[bytes]]:
        self._check()
        with self._inner.open_reader(key) as reader:
            yield reader

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        buffer = io.BytesIO()
        yield buffer
        self.put(key, buffer.getvalue())

    def _check(self) -> None:
        if self._writes_left < 0:
            raise PowerCut

    def _survives(self) -> bool:
        self._check()
        self._writes_left -= 1
        return self._writes_left >= 0
