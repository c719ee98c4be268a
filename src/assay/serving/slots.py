"""Slots of a scarce resource, shared fairly between projects.

A project gets a limited number of slots. The next slot goes to the waiting project with the fewest, and within a
project to the oldest request. Cancelled requests leave the queue.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from assay.serving.api_error import ApiError, busy


class FairSlots:
    """Slots for one event loop."""

    def __init__(self, total: int, per_project: int, *, max_waiting: int, wait_s: float, code: str, title: str) -> None:
        """At most `max_waiting` requests of a project wait, for at most `wait_s`; others are rejected with
        `code`. `title`: plural name of the resource for messages."""
        self._total = total
        self._per_project = per_project
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._code = code
        self._title = title
        self._held = Counter[str]()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The project that got the last slot comes last."""

    @asynccontextmanager
    async def slot(self, project: str) -> AsyncIterator[None]:
        """Hold a slot for the time of the context."""
        await self._wait(project)
        try:
            yield
        finally:
            self._give_back(project)

    async def _wait(self, project: str) -> None:
        waiting = self._waiting.setdefault(project, deque())
        if len(waiting) >= self._max_waiting:
            raise self._refused(project, f"and {len(waiting)} requests wait for that")
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._grant()
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._give_back(project)
            else:
                with suppress(ValueError):  # it got its slot while being cancelled
                    waiting.remove(turn)
                self._drop_empty(project)
            if isinstance(error, TimeoutError):
                raise self._refused(project, f"for {self._wait_s:g} s by now") from None
            raise

    def _grant(self) -> None:
        while self._held.total() < self._total:
            able = [candidate for candidate, waiting in self._waiting.items() if waiting]
            project = min(able, key=lambda candidate: self._held[candidate], default=None)
            if project is None or self._held[project] >= self._per_project:
                return
            waiting = self._waiting.pop(project)
            turn = waiting.popleft()
            self._waiting[project] = waiting  # moves to the end of the queue
            if not turn.done():  # otherwise it was cancelled
                self._held[project] += 1
                turn.set_result(None)

    def _give_back(self, project: str) -> None:
        self._held[project] -= 1
        self._drop_empty(project)
        self._grant()

    def _drop_empty(self, project: str) -> None:
        if not self._held[project] and not self._waiting.get(project):
            self._held.pop(project, None)
            self._waiting.pop(project, None)

    def _refused(self, project: str, why: str) -> ApiError:
        held = self._held[project]
        others = "" if held >= self._per_project else ", and other projects hold the rest"
        return busy(f"{held} {self._title} of this project run{others}, {why}.", self._code)
