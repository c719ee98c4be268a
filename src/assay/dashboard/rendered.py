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

MAX_AGE_S = 10.0
MAX_BYTES = 32 << 20
LIVE_SHARE = 0.03
"""Share of a core that all open pages together may take to fetch themselves again."""
TOKEN = f"token-{secrets.token_hex(16)}"
READER = f"reader-{secrets.token_hex(16)}"
"""Stand in a stored page for the reader's token and name; no text that users write can contain them."""


class RenderedPage(NamedTuple):
    """A page as text, with `TOKEN` and `READER` in it."""

    status: int
    text: str
    versions: Mapping[str, int]
    rendered_s: float
    cost_s: float
    """CPU time that it took."""


class RenderedPages:
    """The pages that were made last, by address and by what their reader may see."""

    def __init__(self) -> None:
        self._cached: OrderedDict[tuple[object, ...], RenderedPage] = OrderedDict()
        self._page_locks = [threading.Lock() for _ in range(64)]
        """By the hash of a page's key: a page that several readers fetch at the same time is made once."""
        self._lock = threading.Lock()

    def get(
        self,
        key: tuple[object, ...],
        versions: Callable[[Mapping[str, int]], Mapping[str, int]],
        make: Callable[[], RenderedPage | None],
        *,
        is_live: bool,
    ) -> RenderedPage | None:
        """Return a page. `versions`: of the topics of a stored page now. `make` may return None for what is no page.
        `is_live`: the page fetches itself again, so a stored one of the same versions will do."""
        if not is_live:
            return self._render(key, make)
        with self._page_locks[hash(key) % len(self._page_locks)]:
            cached = self._cached.get(key)
            if (
                cached
                and time.monotonic() - cached.rendered_s < MAX_AGE_S
                and versions(cached.versions) == cached.versions
            ):
                return cached
            return self._render(key, make)

    def cost_s(self, key: tuple[object, ...]) -> float:
        """Return the CPU time of a page when it was made last."""
        cached = self._cached.get(key)
        return cached.cost_s if cached else 0.0

    def forget(self) -> None:
        """Forget all pages, because something was changed through this server."""
        with self._lock:
            self._cached.clear()

    def _render(self, key: tuple[object, ...], make: Callable[[], RenderedPage | None]) -> RenderedPage | None:
        rendered = make()
        if rendered is not None:
            with self._lock:
                self._cached[key] = rendered
                self._cached.move_to_end(key)
                while sum(len(page.text) for page in self._cached.values()) > MAX_BYTES:
                    self._cached.popitem(last=False)
        return rendered


def refresh_s(least_s: float, cost_s: float, num_streams: int) -> float:
    """Return how long a page waits before it fetches itself again, so that all pages together keep `LIVE_SHARE`."""
    return max(least_s, cost_s * num_streams / LIVE_SHARE)
