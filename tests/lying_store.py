"""A meeting place that damages the changes that clusters put there."""

import random
from typing import Any

from assay.store.objects import ObjectStore


class LyingStore:
    """Flips, truncates or removes changes: a share of them when they are put, and later one at a share of look-ups."""

    def __init__(
        self, inner: ObjectStore, *, seed: int, when_put: float = 0.2, later: float = 0.02, most: int = 10_000
    ) -> None:
        """`most`: damages in all."""
        self._inner = inner
        self._rng = random.Random(seed)
        self._when_put, self._later = when_put, later
        self.damages_left = most

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        is_new = self._inner.put_if_absent(key, data)
        if is_new:
            self._damage([key], rate=self._when_put)
        return is_new

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._inner.put(key, data)
        self._damage([key], rate=self._when_put)

    def exists(self, key: str) -> bool:
        self._damage(sorted(item.key for item in self._inner.list("changes/")), rate=self._later)
        return self._inner.exists(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _damage(self, keys: list[str], *, rate: float) -> None:
        is_change = bool(keys) and keys[0].startswith("changes/")
        if not is_change or not self.damages_left or self._rng.random() >= rate:
            return
        self.damages_left -= 1
        key = self._rng.choice(keys)
        kind = self._rng.choice(["flipped", "truncated", "removed"])
        if kind == "removed":
            self._inner.delete(key)
        else:
            data = self._inner.get(key)
            self._inner.put(key, data[:-1] if kind == "truncated" else b"x" + data[1:])
