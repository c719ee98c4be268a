"""Rendered pages that several readers have open: each is made once for a state of its topics.

A page that fetches itself again gets what another reader of the same project got for the same versions. A page that
a reader opens is always made from the present facts.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

KEPT_S = 10.0
MAX_BYTES = 32 << 20
LIVE_SHARE = 0.03
"""Share of a core that all open pages together may take to fetch themselves again."""
TOKEN = f"token-{secrets.token_hex(16)}"
READER = f"reader-{secrets.token_hex(16)}"
"""Stand in a kept page for the reader's token and name; no text that users write can contain them."""


class Rendered(NamedTuple):
    """A page as text, with `TOKEN` and `READER` in it."""

    status: int
    text: str
    versions: Mapping[str, int]
    made_s: float
    cost_s: float
    """CPU time that it took."""


class RenderedPages:
    """The pages that were made last, by address and by what their reader may see."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], Rendered] = OrderedDict()
        self._turns: dict[tuple[object, ...], threading.Lock] = {}
        self._lock = threading.Lock()

    def get(
        self,
        key: tuple[object, ...],
        versions: Callable[[Mapping[str, int]], Mapping[str, int]],
        make: Callable[[], Rendered | None],
        *,
        is_live: bool,
    ) -> Rendered | None:
        """Return a page. `versions`: of the topics of a kept page now. `make` may return None for what is no page.
        `is_live`: the page fetches itself again, so a kept one of the same versions will do."""
        if not is_live:
            return self._made(key, make)
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            kept = self._kept.get(key)
            if kept and time.monotonic() - kept.made_s < KEPT_S and versions(kept.versions) == kept.versions:
                return kept
            return self._made(key, make)

    def cost_s(self, key: tuple[object, ...]) -> float:
        """Return the CPU time of a page when it was made last."""
        kept = self._kept.get(key)
        return kept.cost_s if kept else 0.0

    def forget(self) -> None:
        """Forget all pages, because something was changed through this server."""
        with self._lock:
            self._kept.clear()

    def _made(self, key: tuple[object, ...], make: Callable[[], Rendered | None]) -> Rendered | None:
        rendered = make()
        if rendered is not None:
            with self._lock:
                self._kept[key] = rendered
                self._kept.move_to_end(key)
                while sum(len(page.text) for page in self._kept.values()) > MAX_BYTES:
                    oldest, _ = self._kept.popitem(last=False)
                    self._turns.pop(oldest, None)
        return rendered


def refresh_s(least_s: float, cost_s: float, num_streams: int) -> float:
    """Return how long a page waits before it fetches itself again, so that all pages together keep `LIVE_SHARE`."""
    return max(least_s, cost_s * num_streams / LIVE_SHARE)
