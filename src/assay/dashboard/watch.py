"""Notices what changes in a home, once for all open pages.

A topic is a name such as `runs` or `run:ID`; its version grows when the files and rows behind it change. Topics are
looked at only while a page is open, each at most once in `LOOK_S` however many pages show it.
"""

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import NamedTuple

import anyio
import anyio.to_thread

Look = Callable[[str], object]
"""Returns a value that differs when what the argument names has changed."""

LOOK_S = 1.0
HEARTBEAT_S = 15.0
"""A stream says something at least this often, so that both sides notice a lost connection."""


class _Seen(NamedTuple):
    value: object
    version: int
    at_s: float


class Watch:
    """The versions of topics."""

    def __init__(self, looks: Mapping[str, Look]) -> None:
        """`looks`: by the part of a topic before the colon; each gets the part behind it."""
        self._looks = looks
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()

    def knows(self, topic: str) -> bool:
        """Return whether there are topics of this kind."""
        return topic.partition(":")[0] in self._looks

    def versions(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the versions of topics, at most `LOOK_S` old."""
        with self._lock:
            return {topic: self._version(topic) for topic in topics}

    def _version(self, topic: str) -> int:
        seen, now_s = self._seen.get(topic), time.monotonic()
        if seen is not None and now_s - seen.at_s < LOOK_S:
            return seen.version
        kind, _, name = topic.partition(":")
        try:
            value = self._looks[kind](name)
        except Exception as error:  # what cannot be read has changed, and changes again once it can be
            value = repr(error)
        version = 1 if seen is None else seen.version + (seen.value != value)
        self._seen[topic] = _Seen(value, version, now_s)
        return version

    async def events(self, since: Mapping[str, int]) -> AsyncIterator[bytes]:
        """Yield a server-sent event whenever a topic of `since` has another version than before."""
        known, silent_s = dict(since), 0.0
        yield b"retry: 2000\n\n"
        while True:
            now = await anyio.to_thread.run_sync(self.versions, tuple(known))
            if now != known:
                known, silent_s = now, 0.0
                identifier = "&".join(f"{topic}={version}" for topic, version in now.items())
                yield f"id: {identifier}\nevent: changed\ndata: {identifier}\n\n".encode()
            elif silent_s >= HEARTBEAT_S:
                silent_s = 0.0
                yield b": still here\n\n"
            await anyio.sleep(LOOK_S)
            silent_s += LOOK_S
