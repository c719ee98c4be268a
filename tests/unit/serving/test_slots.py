import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.serving.api_error import ApiError
from assay.serving.slots import FairSlots


def slots(*, total: int = 3, per_project: int = 2, max_waiting: int = 5, wait_s: float = 5.0) -> FairSlots:
    return FairSlots(
        total=total,
        per_project=per_project,
        max_waiting=max_waiting,
        wait_s=wait_s,
        code="busy",
        title="graders",
    )


class Held:
    """Requests that hold a slot until they are let go."""

    def __init__(self, of: FairSlots) -> None:
        self.of = of
        self.began: list[str] = []

    def send(self, project: str) -> "asyncio.Task[None]":
        async def hold() -> None:
            async with self.of.slot(project):
                self.began.append(project)
                await asyncio.Event().wait()

        return asyncio.ensure_future(hold())


def run(scene: Callable) -> None:
    asyncio.run(scene())


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


def test_a_project_holds_its_own_slots_only_and_the_one_that_holds_fewest_is_next() -> None:
    async def scene() -> None:
        held = Held(slots())
        first, *_ = [held.send("a") for _ in range(4)]
        await settle()
        assert held.began == ["a", "a"]
        second = held.send("b")
        held.send("b")
        held.send("c")
        await settle()
        assert held.began == ["a", "a", "b"]
        first.cancel()
        await settle()
        assert held.began[3:] == ["c"]  # which holds none, though others came before
        second.cancel()
        await settle()
        assert held.began[4:] == ["b"]

    run(scene)


def test_one_who_gives_up_leaves_the_queue_and_its_slot_at_once() -> None:
    async def scene() -> None:
        held = Held(slots(total=1, per_project=1))
        first, second, _ = [held.send(project) for project in "abc"]
        await settle()
        second.cancel()
        first.cancel()
        await settle()
        assert held.began == ["a", "c"]

    run(scene)


def test_a_slot_that_is_given_in_the_moment_of_giving_up_is_not_lost() -> None:
    async def scene() -> None:
        held = Held(slots(total=1, per_project=1))
        first, second, _ = [held.send(project) for project in "abc"]
        await settle()
        first.cancel()
        await asyncio.sleep(0)  # the second has been granted the slot, and does not know yet
        second.cancel()
        await settle()
        assert held.began[-1] == "c"

    run(scene)


@pytest.mark.parametrize("kwargs", [{"max_waiting": 1}, {"wait_s": 0.01}])
def test_too_many_or_too_late_are_asked_to_come_again(kwargs) -> None:
    async def scene() -> None:
        held = Held(slots(total=1, **kwargs))
        held.send("a")
        await settle()
        waiting = [held.send("a") for _ in range(2)]
        with pytest.raises(ApiError, match="1 graders of this project run, and other projects") as refused:
            await waiting[-1]
        assert (refused.value.status, refused.value.code) == (429, "busy")
        assert "retry-after" in refused.value.headers
        held.send("b")

    run(scene)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=30))
def test_whoever_comes_and_leaves_no_slot_is_lost_or_given_twice(steps) -> None:
    async def scene() -> None:
        of = slots(max_waiting=50)
        held = Held(of)
        asking: list[asyncio.Task[None]] = []
        for project, leaving in steps:
            asking.append(held.send(project))
            if leaving < len(asking):
                asking[leaving].cancel()
            if leaving % 2:
                await settle()
            assert of._held.total() <= 3 and max(of._held.values(), default=0) <= 2
        await settle()
        assert of._held.total() == 3 or not any(
            waiting for project, waiting in of._waiting.items() if of._held[project] < 2
        )
        for task in asking:
            task.cancel()
        await settle()
        assert not of._waiting and not of._held  # a project that is gone leaves nothing behind

    run(scene)
