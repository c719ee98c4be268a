"""Which models are loaded: each in a process of its own, as many as there is room for, the least recently used
leaves first.

    request --name--> loaded? --> its engine
                      else: a place that is free, or that of the model which nobody has asked for longest
                      else: wait; all are at work
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from assay.inference.protocol import Engine, ModelSource, Ready
from assay.serving.engines.refusals import engines_busy
from assay.serving.refusal import RefusedError
from assay.serving.slots import FairSlots

WAIT_S = 60.0
"""How long a request waits for a place."""
SLICE_S = 20.0
"""How long a model that is asked without a pause keeps its place while others wait for one."""
ASKED_AT_ONCE = 2
"""Requests that one engine has: it answers one, and has the next at hand."""
MAX_WAITING = 512
"""Requests of a project that wait for one engine."""
ENGINE_WAIT_S = 600.0


class BegunEngine(Engine, Protocol):
    """An engine that can be given its model, and ended."""

    @property
    def is_over(self) -> bool:
        """Whether it will never answer again."""
        ...

    async def load(self, source: ModelSource) -> Ready:
        """Have the model loaded; `RefusedError` where it cannot be."""
        ...

    def end(self) -> None:
        """Leave, whatever is under way."""
        ...


class _Place:
    """Where a model is, or is about to be."""

    def __init__(self, loading: "asyncio.Future[BegunEngine]") -> None:
        self.loading = loading
        self.since_s = asyncio.get_running_loop().time()
        self.slots = FairSlots(
            ASKED_AT_ONCE,
            ASKED_AT_ONCE,
            title="requests to this model",
            code="engines_busy",
            max_waiting=MAX_WAITING,
            wait_s=ENGINE_WAIT_S,
        )
        self.num_users = 0
        """Requests that have a slot."""
        self.is_leaving = False
        """It takes no further requests: others wait for its place."""

    @property
    def has_failed(self) -> bool:
        """Whether it could not be loaded."""
        return self.loading.done() and (self.loading.cancelled() or self.loading.exception() is not None)

    @property
    def is_lost(self) -> bool:
        """Likewise, or died since."""
        return self.has_failed or (self.loading.done() and self.loading.result().is_over)


class EnginePool:
    """The models of one server that are loaded."""

    def __init__(
        self,
        begin: Callable[[], Awaitable[BegunEngine]],
        *,
        most: int,
        most_bytes: int | None = None,
        wait_s: float = WAIT_S,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """At most `most` models at a time, and of those that nobody asks no more than `most_bytes` of memory
        hold. `say` gets which is loaded."""
        self._begin = begin
        self._most = most
        self._most_bytes = most_bytes
        self._wait_s = wait_s
        self._say = say
        self._places: dict[str, _Place] = {}
        """By what is loaded, the least recently used first."""
        self._line: list[object] = []
        """Requests that wait for room; who came first is the first."""
        self._changed = asyncio.Event()
        """Set when somebody leaves; then there is a new one."""

    @asynccontextmanager
    async def engine(self, source: ModelSource, project: str = "") -> AsyncIterator[Engine]:
        """The engine of a model, for the time of a project's request; `RefusedError` says why there is none.

        Projects take turns at one engine.
        """
        key = source.model_dump_json()
        is_answered = False
        while not is_answered:
            place = await self._place(key, source)
            async with place.slots.slot(project):
                if place.is_leaving and not place.has_failed:
                    continue
                place.num_users += 1
                try:
                    yield await asyncio.shield(place.loading)
                    is_answered = True
                finally:
                    place.num_users -= 1
                    if place.is_lost:
                        self._forget(key, place)
                    self._shrink()
                    self._tell_of_change()

    def loaded(self) -> list[BegunEngine]:
        """Engines that have their model, the least recently used first."""
        return [
            each.loading.result() for each in self._places.values() if each.loading.done() and not each.is_lost
        ]

    async def _place(self, key: str, source: ModelSource) -> _Place:
        await self._wait_for_room(key)
        # From here to the end nothing waits, so nobody else takes the room.
        self._forget_lost()
        place = self._places.pop(key, None)
        if place is None:
            place = _Place(asyncio.ensure_future(self._loaded(source)))
            place.loading.add_done_callback(lambda _: self._tell_of_change())
        place.is_leaving = False  # there is room by now
        self._places[key] = place  # the last one used stands last
        return place

    async def _wait_for_room(self, key: str) -> None:
        """Until the model has a place, or there is room for it and nobody has waited longer for some."""
        until_s = asyncio.get_running_loop().time() + self._wait_s
        ours = object()
        self._line.append(ours)
        try:
            while not self._has(key) and not (self._line[0] is ours and self._room()):
                changed = self._changed
                async with asyncio.timeout_at(until_s):
                    await changed.wait()
        except TimeoutError:
            raise engines_busy(self._most) from None
        finally:
            self._line.remove(ours)
            if self._line:
                self._tell_of_change()

    def _has(self, key: str) -> bool:
        place = self._places.get(key)
        return place is not None and not place.is_leaving

    def _tell_of_change(self) -> None:
        """Wake those who wait for room."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _room(self) -> bool:
        """Whether one more has a place; who is idle longest makes it."""
        self._forget_lost()
        if len(self._places) < self._most:
            return True
        if self._evict_one():
            return True
        self._have_one_leave()
        return False

    def _evict_one(self) -> bool:
        for key, place in self._places.items():
            if not place.num_users and place.loading.done():
                if not place.is_lost:
                    place.loading.result().end()
                self._forget(key, place)
                return True
        return False

    def _have_one_leave(self) -> None:
        before_s = asyncio.get_running_loop().time() - SLICE_S
        oldest = min(self._places.values(), key=lambda each: each.since_s)
        if oldest.since_s < before_s and not any(each.is_leaving for each in self._places.values()):
            oldest.is_leaving = True

    def _shrink(self) -> None:
        """Hold no more memory than there shall be, as far as nobody is at work."""
        if self._most_bytes is None:
            return
        while sum(each.ready.resident_bytes for each in self.loaded()) > self._most_bytes:
            if not self._evict_one():
                return

    def _forget_lost(self) -> None:
        for key, place in [*self._places.items()]:
            if place.is_lost:
                self._forget(key, place)

    def _forget(self, key: str, place: _Place) -> None:
        place.is_leaving = True
        if self._places.get(key) is place:
            del self._places[key]

    async def _loaded(self, source: ModelSource) -> BegunEngine:
        name = f"{source.run_id}@{source.step}" if source.run_id else "a base model"
        self._say(f"loading {name} ...")
        engine = await self._begin()
        try:
            await engine.load(source)
            self._say(f"loaded {name}")
        except BaseException:
            engine.end()
            raise
        if self._most_bytes is not None and engine.ready.resident_bytes > self._most_bytes:
            held = engine.ready.resident_bytes
            engine.end()
            raise RefusedError(
                f"The model takes {held / 1e9:.1f} GB, and this server lets its models have "
                f"{self._most_bytes / 1e9:.1f} GB ('assay serve --engine-memory').",
                code="model_too_large",
                param="model",
            )
        return engine
