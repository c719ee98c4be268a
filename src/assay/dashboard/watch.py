"""Notices what changes in a home, once for all open pages.

A topic is a name such as `runs` or `run:ID`; its version grows when the files and rows behind it change. Topics are
looked at only while a page is open, each at most once in `LOOK_S` however many pages show it.
"""

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import anyio
import anyio.to_thread

Look = Callable[[str], object]
"""Returns a value that differs when what the argument names has changed."""

LOOK_S = 1.0
LOOK_SHARE = 0.03
"""Largest share of a core that the looks at one topic may take: what takes long is looked at less often."""
TOTAL_SHARE, FORGET_S = 0.1, 60.0
"""Largest share of a core that the looks at all topics of the last minute may take."""
RESPONSE_SHARE, MAX_PAUSE_S = 0.06, 10.0
"""Largest share of a core that responses to the messages of all streams may take: what costs more is said less often. A
change is on every page within `LOOK_S + MAX_PAUSE_S`."""
RECEIVE_S = 0.002
"""CPU time of a request besides that of its response."""
MESSAGES = 20
"""The CPU time of responses is the mean over about so many messages."""
MAX_STREAMS, POLL_MS, RETRY_MS = 500, 10_000, 1_000
"""Above this number of streams, further ones end at once, and their pages ask again after `POLL_MS`, not `RETRY_MS`."""
RENEW_S = 600.0
"""After this time a stream ends, and its page asks again: a login may have ended."""
HEARTBEAT_S = 15.0
"""A stream says something at least this often, so that both sides notice a lost connection."""


class _Seen(NamedTuple):
    value: int
    """Hash of what was seen."""
    version: int
    changed_s: float
    """Time on the monotonic clock, as `next_s`."""
    next_s: float
    """Until then, this is new enough."""


class Watch:
    """The versions of topics."""

    def __init__(self, looks: Mapping[str, Look]) -> None:
        """`looks`: by the part of a topic before the colon; each gets the part behind it."""
        self._looks = looks
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()
        self._looking = anyio.CapacityLimiter(1)
        """Streams look one at a time, so that they do not fill the threads of other requests."""
        self._stopped = anyio.Event()
        self._start_ms = 1000 * (time.time() - time.monotonic())
        self.num_streams = 0
        self._response_s = 0.0
        """Mean CPU time of the responses to a message."""
        self._responses_s: list[float] = []
        """Since the last message."""

    def stop(self) -> None:
        """End all streams, so that the server can stop. Call it in the event loop."""
        self._stopped.set()

    def forget(self) -> None:
        """Look at all topics again at the next request, because something was changed through this server."""
        with self._lock:
            self._seen = {topic: seen._replace(next_s=0.0) for topic, seen in self._seen.items()}

    def note_cost(self, cpu_s: float) -> None:
        """Note the CPU time of a response that a message led to."""
        self._responses_s.append(cpu_s + RECEIVE_S)

    def pause_s(self) -> float:
        """Return how long a stream waits after a message, so that all responses together keep `RESPONSE_SHARE`."""
        return min(max(LOOK_S, self.num_streams * self._response_s / RESPONSE_SHARE), MAX_PAUSE_S)

    def versions(self, topics: Iterable[str], *, read_s: float | None = None) -> dict[str, int]:
        """Return the versions of topics, at most a look old.

        `read_s`: when a page began to read its facts; a change that was noticed later does not count, so that the
        page is fetched again.
        """
        topics = tuple(topics)
        known = self._known(topics)
        if known is None:
            with self._lock:
                known = {topic: self._look(topic) for topic in topics}
        return {topic: seen.version - (read_s is not None and seen.changed_s > read_s) for topic, seen in known.items()}

    def _known(self, topics: Sequence[str]) -> dict[str, _Seen] | None:
        """Return what was seen of the topics, without waiting for a look; None if one is due."""
        now_s = time.monotonic()
        seen = {topic: self._seen.get(topic) for topic in topics}
        known = {topic: found for topic, found in seen.items() if found is not None and now_s < found.next_s}
        return known if len(known) == len(seen) else None

    def _look(self, topic: str) -> _Seen:
        seen, began_s = self._seen.get(topic), time.monotonic()
        if seen is not None and began_s < seen.next_s:
            return seen
        kind, _, name = topic.partition(":")
        worked_s = time.thread_time()
        try:
            value = hash(repr(self._looks[kind](name)))
        except Exception as error:  # what cannot be read has changed, and changes again once it can be
            value = hash(repr(error))
        worked_s, now_s = time.thread_time() - worked_s, time.monotonic()
        if seen is None:
            self._seen = {other: its for other, its in self._seen.items() if now_s - its.next_s < FORGET_S}
        wait_s = max(LOOK_S, worked_s / LOOK_SHARE, worked_s * len(self._seen) / TOTAL_SHARE)
        if seen is None or seen.value != value:
            # The time in milliseconds: a page from before a restart or a change never has the version of a later state.
            seen = _Seen(value, int(self._start_ms + 1000 * now_s), now_s, 0.0)
        self._seen[topic] = seen._replace(next_s=now_s + wait_s)
        return self._seen[topic]

    async def events(self, since: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yield a server-sent event whenever a topic has another version than before, at first than in `since`."""
        known, silent_s, topics = dict(since), 0.0, tuple(since)
        ends_s = time.monotonic() + RENEW_S
        is_held = self.num_streams < MAX_STREAMS
        self.num_streams += is_held
        try:
            yield b"retry: %d\n\n" % (RETRY_MS if is_held else POLL_MS)
            while not self._stopped.is_set() and time.monotonic() < ends_s:
                # Of many streams, one waits in a thread for a look; the others find what it saw.
                if self._known(topics) is not None:
                    versions = self.versions(topics)
                else:
                    versions = await anyio.to_thread.run_sync(self.versions, topics, limiter=self._looking)
                now = {topic: str(version) for topic, version in versions.items()}
                if now != known:
                    known, silent_s = now, 0.0
                    identifier = "&".join(f"{topic}={version}" for topic, version in now.items())
                    responses_s, self._responses_s = self._responses_s, []
                    self._response_s += (sum(responses_s) - self._response_s) / MESSAGES
                    yield f"id: {identifier}\nevent: changed\ndata: {identifier}\n\n".encode()
                elif silent_s >= HEARTBEAT_S:
                    silent_s = 0.0
                    yield b"event: unchanged\ndata:\n\n"
                if not is_held:
                    return
                pause_s = self.pause_s()
                with anyio.move_on_after(pause_s):
                    await self._stopped.wait()
                silent_s += pause_s
        finally:
            self.num_streams -= is_held
