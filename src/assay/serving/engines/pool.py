"""Loaded models, one process each. The least recently used model is evicted if there is no free slot.

request --name--> loaded? --> its engine
                  else: a free slot, or that of the least recently used idle model
                  else: wait until a model is idle
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from assay.inference.protocol import ModelSource
from assay.serving.api_error import RETRY_AFTER_S, ApiError
from assay.serving.engines.process import EngineProcess
from assay.serving.slots import FairSlots

WAIT_S = 60.0
"""How long a request waits for a slot."""
SLICE_S = 20.0
"""A busy model keeps its slot this long while requests wait for another model."""
CONCURRENT_REQUESTS = 2
"""Requests per engine: it processes one and has the next one queued."""
MAX_WAITING = 512
"""Queued requests per project and engine."""
ENGINE_WAIT_S = 600.0


class _ModelSlot:
    """A model that is loaded or loading."""

    def __init__(self, loading: "asyncio.Future[EngineProcess]") -> None:
        self.loading = loading
        self.since_s = asyncio.get_running_loop().time()
        self.requests = FairSlots(
            CONCURRENT_REQUESTS,
            CONCURRENT_REQUESTS,
            title="requests to this model",
            code="engines_busy",
            max_waiting=MAX_WAITING,
            wait_s=ENGINE_WAIT_S,
        )
        self.num_users = 0
        """Running requests."""
        self.is_draining = False
        """It takes no further requests, because requests wait for its slot."""

    @property
    def has_failed(self) -> bool:
        """Whether loading failed."""
        return self.loading.done() and (self.loading.cancelled() or self.loading.exception() is not None)

    @property
    def is_lost(self) -> bool:
        """Whether loading failed or the process died."""
        return self.has_failed or (self.loading.done() and self.loading.result().is_over)


class EnginePool:
    """The loaded models of a server."""

    def __init__(
        self,
        begin: Callable[[], Awaitable[EngineProcess]],
        *,
        max_models: int,
        max_bytes: int | None = None,
        wait_s: float = WAIT_S,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Keep at most `max_models` models, and idle ones only up to `max_bytes` of memory. `notify` gets a
        line when a model is loaded."""
        self._begin = begin
        self._max_models = max_models
        self._max_bytes = max_bytes
        self._wait_s = wait_s
        self._notify = notify
        self._slots: dict[str, _ModelSlot] = {}
        """By model source, least recently used first."""
        self._queue: list[object] = []
        """Requests that wait for a slot, in order of arrival."""
        self._changed = asyncio.Event()
        """Set and replaced when a slot may have become free."""

    @asynccontextmanager
    async def engine(self, source: ModelSource, project: str = "") -> AsyncIterator[EngineProcess]:
        """Yield the engine of a model for one request. Raises `ApiError` if it cannot be loaded.

        Projects share an engine fairly.
        """
        key = source.model_dump_json()
        is_done = False
        while not is_done:
            slot = await self._slot_for(key, source)
            async with slot.requests.slot(project):
                if slot.is_draining and not slot.has_failed:
                    continue
                slot.num_users += 1
                try:
                    yield await asyncio.shield(slot.loading)
                    is_done = True
                finally:
                    slot.num_users -= 1
                    if slot.is_lost:
                        self._drop(key, slot)
                    self._shrink()
                    self._notify_change()

    def loaded(self) -> list[EngineProcess]:
        """Return the loaded engines, least recently used first."""
        return [slot.loading.result() for slot in self._slots.values() if slot.loading.done() and not slot.is_lost]

    async def _slot_for(self, key: str, source: ModelSource) -> _ModelSlot:
        await self._wait_for_room(key)
        # There is no await from here on, so no other request can take the slot.
        self._drop_lost()
        slot = self._slots.pop(key, None)
        if slot is None:
            slot = _ModelSlot(asyncio.ensure_future(self._loaded(source)))
            slot.loading.add_done_callback(lambda _: self._notify_change())
        slot.is_draining = False  # a slot is free by now
        self._slots[key] = slot  # keeps least recently used order
        return slot

    async def _wait_for_room(self, key: str) -> None:
        """Wait until the model is loaded, or until a slot is free and nobody has waited longer."""
        until_s = asyncio.get_running_loop().time() + self._wait_s
        ours = object()
        self._queue.append(ours)
        try:
            while not self._has(key) and not (self._queue[0] is ours and self._room()):
                changed = self._changed
                async with asyncio.timeout_at(until_s):
                    await changed.wait()
        except TimeoutError:
            raise _engines_busy(self._max_models) from None
        finally:
            self._queue.remove(ours)
            if self._queue:
                self._notify_change()

    def _has(self, key: str) -> bool:
        slot = self._slots.get(key)
        return slot is not None and not slot.is_draining

    def _notify_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _room(self) -> bool:
        """Return whether a slot is free; evict an idle model if necessary."""
        self._drop_lost()
        if len(self._slots) < self._max_models:
            return True
        if self._evict_one():
            return True
        self._drain_oldest()
        return False

    def _evict_one(self) -> bool:
        for key, slot in self._slots.items():
            if not slot.num_users and slot.loading.done():
                if not slot.is_lost:
                    slot.loading.result().end()
                self._drop(key, slot)
                return True
        return False

    def _drain_oldest(self) -> None:
        before_s = asyncio.get_running_loop().time() - SLICE_S
        oldest = min(self._slots.values(), key=lambda slot: slot.since_s)
        if oldest.since_s < before_s and not any(slot.is_draining for slot in self._slots.values()):
            oldest.is_draining = True

    def _shrink(self) -> None:
        """Evict idle models until the memory limit is met."""
        if self._max_bytes is None:
            return
        while sum(engine.ready.resident_bytes for engine in self.loaded()) > self._max_bytes:
            if not self._evict_one():
                return

    def _drop_lost(self) -> None:
        for key, slot in [*self._slots.items()]:
            if slot.is_lost:
                self._drop(key, slot)

    def _drop(self, key: str, slot: _ModelSlot) -> None:
        slot.is_draining = True
        if self._slots.get(key) is slot:
            del self._slots[key]

    async def _loaded(self, source: ModelSource) -> EngineProcess:
        name = f"{source.run_id}@{source.step}" if source.run_id else "a base model"
        self._notify(f"loading {name} ...")
        engine = await self._begin()
        try:
            await engine.load(source)
            self._notify(f"loaded {name}")
        except BaseException:
            engine.end()
            raise
        if self._max_bytes is not None and engine.ready.resident_bytes > self._max_bytes:
            held = engine.ready.resident_bytes
            engine.end()
            raise ApiError(
                f"The model needs {held / 1e9:.1f} GB, but models may use at most "
                f"{self._max_bytes / 1e9:.1f} GB ('assay serve --engine-memory').",
                code="model_too_large",
                param="model",
            )
        return engine


def _engines_busy(max_models: int) -> ApiError:
    """503: all slots hold busy models."""
    return ApiError(
        f"All {max_models} models that this server may load are busy. Retry, or raise 'assay serve --engines'.",
        status=503,
        code="engines_busy",
        headers={"retry-after": str(RETRY_AFTER_S)},
    )
