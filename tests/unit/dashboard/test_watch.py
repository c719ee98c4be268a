"""Event streams: how many are held, when they end, and what versions say."""

import time
from collections.abc import Callable

import anyio
import pytest

from assay.dashboard import watch as watch_module
from assay.dashboard.watch import Watch


async def first_parts(watch: Watch, count: int) -> list[bytes]:
    found = []
    async for part in watch.events({"runs": "0"}):
        found.append(part)
        if len(found) == count:
            break
    return found


def test_streams_end_at_once_when_the_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "MAX_PAUSE_S", 600.0)
    monkeypatch.setattr(watch_module, "LOOK_S", 600.0)
    watch, num_ended = Watch({"runs": lambda _: 1}), 0

    async def follow() -> None:
        nonlocal num_ended
        async for _ in watch.events({"runs": "0"}):
            pass
        num_ended += 1

    async def main() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(follow)
                while watch.num_streams < 20:
                    await anyio.sleep(0.01)
                watch.stop()

    anyio.run(main)
    assert num_ended == 20 and watch.num_streams == 0


def test_above_the_limit_a_stream_answers_once_and_asks_to_come_back_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "MAX_STREAMS", 0)
    watch = Watch({"runs": lambda _: 1})
    retry, changed = anyio.run(first_parts, watch, 9)
    assert retry == b"retry: 10000\n\n" and b"event: changed" in changed
    assert watch.num_streams == 0


async def cost_of_messages(watch: Watch, cpu_s: float) -> float:
    """Return the pause of a stream once 100 messages have led to answers that cost this much each."""
    stream = watch.events({"number": "0"})
    async for part in stream:
        if b"changed" in part and (count := int(part.rpartition(b"=")[2])):
            watch.note_cost(cpu_s)
            if count > 100:
                break
    return watch.pause_s()


@pytest.mark.parametrize(
    ("num_streams", "cpu_s", "pause_s"),
    [(1, 0.013, 1.0), (4, 0.013, 1.0), (20, 0.013, 5.0), (20, 0.001, 1.0), (500, 0.001, 10.0)],
)
def test_all_answers_together_keep_their_share_of_a_core_whatever_they_cost(
    monkeypatch: pytest.MonkeyPatch, num_streams: int, cpu_s: float, pause_s: float
) -> None:
    numbers, watch = iter(range(1, 200)), Watch({})
    monkeypatch.setattr(Watch, "versions", lambda watch, topics: {"number": next(numbers)})
    monkeypatch.setattr(Watch, "pause_s", lambda watch: 0.0)
    anyio.run(cost_of_messages, watch, cpu_s)
    monkeypatch.undo()
    watch.num_streams = num_streams
    assert watch.pause_s() == pytest.approx(pause_s, rel=0.02)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    passed_s, now_s = 0.0, time.monotonic

    def wait(seconds: float) -> None:
        nonlocal passed_s
        passed_s += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now_s() + passed_s)
    return wait


def test_a_version_of_a_topic_that_was_forgotten_does_not_come_back(later: Callable[[float], None]) -> None:
    state = {"a": 1, "b": 1}
    watch = Watch({"run": state.__getitem__})
    before = watch.versions(["run:a"])
    later(600.0)
    watch.versions(["run:b"])
    assert list(watch._seen) == ["run:b"], "topics that nobody follows take no memory"
    state["a"] = 2
    assert watch.versions(["run:a"]) != before
    later(2.0)
    known = watch.versions(["run:a"])
    later(2.0)
    assert watch.versions(["run:a"]) == known


def test_looks_at_many_topics_take_a_bounded_share_together(
    later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_looks, worked_s = 0, 0.0

    def look(_: str) -> int:
        nonlocal num_looks, worked_s
        num_looks, worked_s = num_looks + 1, worked_s + 0.002
        return 1

    monkeypatch.setattr(time, "thread_time", lambda: worked_s)
    watch = Watch({"run": look})
    topics = [f"run:{number}" for number in range(200)]
    for _ in range(60):
        watch.versions(topics)
        later(1.0)
    assert num_looks * 0.002 / 60 < 2 * watch_module.TOTAL_SHARE
