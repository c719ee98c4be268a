import asyncio
import random
import socket
from collections.abc import Callable
from typing import Any

import pytest

from assay.inference.protocol import GenerateRequest, ModelSource, SamplingParams
from assay.serving.api_error import ApiError
from assay.serving.engines.pool import EnginePool
from assay.serving.engines.process import EngineProcess
from parrot_engine import ParrotEngine


def parrot(engine: object) -> ParrotEngine:
    """What all engines here are."""
    assert isinstance(engine, ParrotEngine)
    return engine


class Engines:
    """All that were begun."""

    def __init__(self, *, max_models: int = 2, max_bytes: int | None = None, wait_s: float = 0.05, size: int = 1):
        self.started: list[ParrotEngine] = []
        self._size = size
        self.log: list[str] = []
        self.pool = EnginePool(
            self.begin, max_models=max_models, max_bytes=max_bytes, wait_s=wait_s, notify=self.log.append
        )

    async def begin(self) -> ParrotEngine:
        engine = ParrotEngine(size=self._size)
        self.started.append(engine)
        return engine

    @property
    def loaded(self) -> list[str]:
        """Runs whose model is there, the least recently used first."""
        return [parrot(item).source.run_id for item in self.pool.loaded()]

    async def send(self, run_id: str) -> ParrotEngine:
        async with self.pool.engine(model(run_id)) as engine:
            return parrot(engine)


def model(run_id: str) -> ModelSource:
    return ModelSource(run_id=run_id, step=1)


def run(scene: Callable, **kwargs) -> None:
    asyncio.run(scene(Engines(**kwargs)))


LOADS = [("loading", " ..."), ("loaded", "")]


def test_a_model_is_loaded_once_and_the_least_recently_used_makes_room():
    async def scene(engines: Engines) -> None:
        first = await engines.send("a")
        assert await engines.send("a") is first
        second = await engines.send("b")
        await engines.send("a")
        await engines.send("c")
        assert engines.loaded == ["a", "c"]
        assert (first.is_over, second.is_over) == (False, True)
        assert engines.log == [f"{output} {name}@1{rest}" for name in "abc" for output, rest in LOADS]

    run(scene)


def test_requests_for_one_model_at_a_time_load_it_once():
    async def scene(engines: Engines) -> None:
        found = await asyncio.gather(*(engines.send("a") for _ in range(5)))
        assert len({id(item) for item in found}) == 1

    run(scene)


def test_who_is_at_work_is_not_sent_away_and_the_next_waits_for_room():
    async def scene(engines: Engines) -> None:
        async with engines.pool.engine(model("a")) as busy:
            with pytest.raises(ApiError) as refused:
                await engines.send("b")
            assert (refused.value.status, refused.value.code) == (503, "engines_busy")
            assert "retry-after" in refused.value.headers
            waiting = asyncio.ensure_future(engines.send("b"))
            await asyncio.sleep(0.01)
            assert not waiting.done()
        assert (await waiting).source == model("b")
        assert parrot(busy).is_over

    run(scene, max_models=1, wait_s=0.2)


def test_a_model_whose_process_died_is_loaded_anew():
    async def scene(engines: Engines) -> None:
        async with engines.pool.engine(model("a")) as engine:
            parrot(engine).end()
            with pytest.raises(ApiError) as refused:
                async for _ in engine.stream(GenerateRequest(prompts=(), params=SamplingParams())):
                    pass
            assert (refused.value.status, refused.value.code) == (503, "engine_died")
        assert await engines.send("a") is not engine

    run(scene)


def test_a_model_that_cannot_be_loaded_takes_nobodys_place():
    async def scene(engines: Engines) -> None:
        await engines.send("a")
        for _ in range(3):
            with pytest.raises(ApiError, match="no such run"):
                await engines.send("none")
        assert engines.loaded == ["a"]
        assert "loaded none@1" not in engines.log
        assert [item.is_over for item in engines.started if item.source is None] == [True] * 3

    run(scene)


def test_models_leave_until_their_memory_fits_and_one_that_never_fits_is_refused():
    async def scene(engines: Engines) -> None:
        for name in "abc":
            await engines.send(name)
        assert engines.loaded == ["b", "c"]

    run(scene, max_models=9, max_bytes=20, size=10)

    async def too_large(engines: Engines) -> None:
        with pytest.raises(ApiError) as refused:
            await engines.send("a")
        assert refused.value.code == "model_too_large"
        assert engines.loaded == [] and engines.started[0].is_over

    run(too_large, max_bytes=9, size=10)


@pytest.mark.parametrize("seed", range(20))
def test_whoever_asks_when_there_are_never_more_models_than_places_and_all_are_answered(seed: int):
    rng = random.Random(seed)

    async def scene(engines: Engines) -> None:
        most_seen = 0

        async def client() -> None:
            nonlocal most_seen
            for _ in range(8):
                name = rng.choice("abcde")
                async with engines.pool.engine(model(name)) as engine:
                    assert parrot(engine).source == model(name)
                    for _ in range(rng.randrange(3)):
                        await asyncio.sleep(0)
                    living = [item for item in engines.started if item.source and not item.is_over]
                    most_seen = max(most_seen, len(living))
                    if rng.random() < 0.1:
                        parrot(engine).end()

        await asyncio.gather(*(client() for _ in range(4)))
        assert 1 < most_seen <= 2

    run(scene, wait_s=5.0)


@pytest.mark.parametrize("error", [EOFError(), ConnectionRefusedError("nobody listens")])
def test_a_process_that_cannot_be_started_is_a_503_that_asks_to_come_again(error: Exception) -> None:
    def start(_: socket.socket) -> Any:
        raise error

    with pytest.raises(ApiError) as refused:
        asyncio.run(EngineProcess.launch(start))
    assert (refused.value.status, refused.value.code) == (503, "engine_died")


def test_projects_take_turns_at_one_engine():
    async def scene(engines: Engines) -> None:
        order: list[str] = []

        async def client(project: str) -> None:
            async with engines.pool.engine(model("a"), project):
                order.append(project)
                await asyncio.sleep(0.005)

        many = [asyncio.ensure_future(client("many")) for _ in range(30)]
        await asyncio.sleep(0.002)
        await client("few")
        assert len(order) < 10
        await asyncio.gather(*many)

    run(scene)


def test_a_model_that_is_asked_without_a_pause_makes_room_for_another(monkeypatch):
    monkeypatch.setattr("assay.serving.engines.pool.SLICE_S", 0.05)

    async def scene(engines: Engines) -> None:
        is_over = False

        async def client() -> None:
            while not is_over:
                async with engines.pool.engine(model("a"), "busy"):
                    await asyncio.sleep(0.002)

        busy = [asyncio.ensure_future(client()) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert (await engines.send("b")).source == model("b")
        is_over = True
        await asyncio.gather(*busy)  # they go on once there is room again

    run(scene, max_models=1, wait_s=5.0)


def test_all_who_wait_for_a_model_that_cannot_be_loaded_are_told_once(monkeypatch):
    async def scene(engines: Engines) -> None:
        results = await asyncio.gather(*(engines.send("a") for _ in range(20)), return_exceptions=True)
        assert {type(result) for result in results} == {ApiError}
        assert len(engines.started) <= 3

    run(scene, max_bytes=9, size=10)
