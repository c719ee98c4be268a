"""What all workers have in common: leases, turns, and what happens when one stops."""

import os
import signal
import threading
from collections.abc import Iterable

import pytest

from assay.base.errors import FencedError, NotInstalledError
from assay.store.leased_worker import DEFERRED_S, LeasedWorker, LeavingError, WorkUnit
from assay.store.leases import Lease, leases
from assay.store.objects import ObjectStore, open_store
from assay.workflows.evaluation.queue import exiting_on_sigterm
from clocks import ManualClock


class Counting:
    """Each unit is due for so many steps."""

    def __init__(self, **steps: int) -> None:
        self.left = steps
        self.steps: list[str] = []
        self.released: list[str] = []
        self.raises: BaseException | None = None
        self.keeps_leases = self.refuses = False

    def due(self) -> Iterable[WorkUnit]:
        return (WorkUnit(name, f"work/{name}", name[0]) for name, left in sorted(self.left.items()) if left)

    def claim(self, unit: WorkUnit, lease: Lease, worker: str) -> bool:
        return not self.refuses

    def step(self, unit: WorkUnit, lease: Lease) -> None:
        if self.raises is not None:
            raise self.raises
        self.steps.append(unit.unit_id)
        self.left[unit.unit_id] -= 1

    def let_go(self, unit_id: str) -> bool:
        if not self.keeps_leases:
            self.released.append(unit_id)
        return not self.keeps_leases


@pytest.fixture
def store() -> ObjectStore:
    return open_store("memory:")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1e9)


def worker_on(store: ObjectStore, clock: ManualClock, handler: Counting, **options) -> LeasedWorker:
    return LeasedWorker(store, [handler], name="w", clock=clock, **options)


def is_released(store: ObjectStore, name: str) -> bool:
    return leases(store, f"work/{name}")[-1].is_released


def test_each_due_unit_gets_a_step_per_poll_and_is_released_when_it_is_done(store, clock) -> None:
    handler = Counting(a=2, b=1)
    worker = worker_on(store, clock, handler)
    assert [worker.poll() for _ in range(3)] == [True, True, False]
    assert handler.steps == ["a", "b", "a"] and handler.released == ["b", "a"]
    assert is_released(store, "a") and is_released(store, "b")


def test_with_slices_one_unit_at_a_time_is_processed_and_projects_take_turns(store, clock) -> None:
    handler = Counting(a1=9, a2=9, b1=9)
    worker = worker_on(store, clock, handler, slice_s=2.0)
    for _ in range(8):
        worker.poll()
        clock.sleep_s(1.0)
        assert len(worker._held) == 1
    assert handler.steps == ["a1", "a1", "b1", "b1", "a1", "a1", "b1", "b1"]
    worker.leave()


def test_a_unit_goes_on_for_as_long_as_nothing_else_waits(store, clock) -> None:
    handler = Counting(a=5)
    worker = worker_on(store, clock, handler, slice_s=2.0)
    for _ in range(5):
        worker.poll()
        clock.sleep_s(10.0)
    assert handler.steps == ["a"] * 5 and len(leases(store, "work/a")) == 1
    worker.leave()


@pytest.mark.parametrize("slice_s", [None, 5.0])
def test_what_another_worker_has_is_passed_over(store, clock, slice_s) -> None:
    first, second = Counting(a=1), Counting(a=1, b=1)
    holder = worker_on(store, clock, first, slice_s=slice_s)
    holder.poll()
    other = worker_on(store, clock, second, slice_s=slice_s)
    other.poll()
    assert second.steps == ["b"]
    holder.leave()
    other.poll()
    other.poll()
    assert second.steps == ["b", "a"]
    other.leave()


@pytest.mark.parametrize("slice_s", [None, 5.0])
def test_a_fenced_unit_is_released_and_its_worker_goes_on(store, clock, slice_s) -> None:
    handler = Counting(a=1)
    worker = worker_on(store, clock, handler, slice_s=slice_s)
    handler.raises = FencedError("taken over")
    assert worker.poll() and handler.released == ["a"] and is_released(store, "a")
    handler.raises = None
    assert worker.poll() and handler.steps == ["a"]
    worker.leave()


def test_a_unit_that_a_later_lease_has_is_not_stepped(store, clock) -> None:
    handler = Counting(a=1)
    handler.refuses = True
    assert not worker_on(store, clock, handler).poll()
    assert handler.steps == [] and is_released(store, "a")


def test_a_unit_is_left_to_others_for_a_while_by_a_worker_that_lacks_a_package(store, clock) -> None:
    handler, output = Counting(a=1), list[str]()
    worker = worker_on(store, clock, handler, notify=output.append)
    handler.raises = NotInstalledError("no such package.")
    worker.poll()
    handler.raises = None
    assert not worker.poll() and is_released(store, "a")
    assert output == ["a is left to other workers for 60 s: no such package."]
    clock.sleep_s(DEFERRED_S)
    assert worker.poll() and handler.steps == ["a"]
    worker.leave()


def test_a_lease_is_kept_for_as_long_as_work_under_it_goes_on(store, clock) -> None:
    handler = Counting(a=1)
    worker = worker_on(store, clock, handler)
    worker.poll()
    handler.keeps_leases = True
    worker.leave()
    assert not is_released(store, "a")
    handler.keeps_leases = False
    worker.leave()
    assert is_released(store, "a")


def test_a_worker_that_is_told_to_leave_in_a_step_releases_its_leases(store, clock) -> None:
    handler = Counting(a=1)
    handler.raises = LeavingError()
    worker_on(store, clock, handler, slice_s=5.0).run(threading.Event(), 0.0, of="work")
    assert handler.released == ["a"] and is_released(store, "a")


def test_sigterm_in_a_step_releases_the_lease(store, clock) -> None:
    class Terminated(Counting):
        def step(self, unit: WorkUnit, lease: Lease) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("it goes on")

    before = signal.getsignal(signal.SIGTERM)
    worker = worker_on(store, clock, Terminated(a=1))
    with pytest.raises(SystemExit) as ended, exiting_on_sigterm(), worker:
        worker.poll()
    assert ended.value.code == 128 + signal.SIGTERM
    assert is_released(store, "a") and signal.getsignal(signal.SIGTERM) is before
