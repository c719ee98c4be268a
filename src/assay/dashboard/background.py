"""Values that take too long for a page: computed in a thread, once for each state of their inputs.

page --latest(name, key, compute)--> newest value, at once; computed again if `key` has changed
the topic `computed:NAME` changes when a value is ready, so open pages fetch themselves again
"""

import logging
import threading
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from assay.base.errors import AssayError

ValueT = TypeVar("ValueT")
_log = logging.getLogger("assay.dashboard")


class Computed(NamedTuple, Generic[ValueT]):
    """What is known of a value."""

    value: ValueT | None = None
    """The newest one; None before the first."""
    error: str = ""
    """Why there is none of the present inputs."""
    is_current: bool = False
    """Whether value or error follow from the present inputs."""

    @property
    def retry_s(self) -> float | None:
        """When a browser without scripts loads the page again: soon, if this is the first computation."""
        return 3.0 if self.value is None and not self.error else None


class _Entry(NamedTuple):
    computed: Computed[object]
    key: Hashable = None
    """Inputs of the value or error."""
    pending: Hashable = None
    """Inputs that are computed now."""
    num_done: int = 0


class Background:
    """The newest values by name. One is computed at a time, so pages keep most of the processor."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def latest(self, name: str, key: Hashable, compute: Callable[[], ValueT]) -> Computed[ValueT]:
        """Return the newest value, without waiting; if it is of another key, begin to compute that of `key`."""
        with self._lock:
            entry = self._entries.get(name, _Entry(Computed()))
            is_current = entry.num_done > 0 and entry.key == key
            if not is_current and entry.pending is None:
                self._entries[name] = entry._replace(pending=key)
                threading.Thread(target=self._compute, args=(name, key, compute), daemon=True).start()
            return entry.computed._replace(is_current=is_current)  # type: ignore[return-value]

    def num_done(self, name: str) -> int:
        """Return how many times a value has been computed."""
        with self._lock:
            entry = self._entries.get(name)
            return 0 if entry is None else entry.num_done

    def _compute(self, name: str, key: Hashable, compute: Callable[[], object]) -> None:
        value, message = None, ""
        with self._turn:
            try:
                value = compute()
            except (AssayError, OSError) as error:
                message = str(error)
            except Exception as error:
                _log.error("computing %s", name, exc_info=error)
                message = "it could not be computed; the server's log says why."
        with self._lock:
            entry = self._entries[name]
            newest = entry.computed.value if message else value
            self._entries[name] = _Entry(Computed(newest, message), key, None, entry.num_done + 1)
