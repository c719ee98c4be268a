"""Who works at what."""

import json
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest

from assay.store.leases import Lease, LeaseWatch, holding, last_lease, leases, take_lease
from assay.store.objects import open_store
from clocks import ManualClock
from failing_store import FailingStore, patient


class BeatingClock(ManualClock):
    """While somebody waits by it, a lease is beaten."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease

    def sleep_s(self, seconds: float) -> None:
        self.at_s += seconds
        self._lease.beat()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


def watched(watch: LeaseWatch, clock: ManualClock, seconds: float) -> Lease | None:
    """What a watcher gets that looks once a second for so long."""
    for _ in range(int(seconds)):
        if (lease := watch.take("job", worker="b")) is not None:
            return lease
        clock.at_s += 1
    return None


def test_a_held_lease_is_nobody_elses_until_its_holder_was_silent_for_a_term(clock):
    store = open_store("memory:")
    first = take_lease(store, "job", worker="a", clock=clock)
    watch = LeaseWatch(store, clock)
    assert watched(watch, clock, 60) is None
    assert watch.may_be_dead("job")
    second = watched(watch, clock, 2)
    assert (first.number, second.number) == (1, 2)
    assert second.is_newest()
    assert not first.is_newest()


def test_a_heartbeat_carries_what_the_holder_leaves_to_its_successor(clock):
    store = open_store("memory:")
    lease = take_lease(store, "job", worker="a", clock=clock)
    lease.note = lambda: f"at {clock.at_s:.0f}"
    assert last_lease(store, "job").note == "" and last_lease(store, "other") is None
    clock.at_s += 5
    lease.beat()
    clock.at_s += 60
    assert watched(LeaseWatch(store, clock), clock, 70).number == 2
    assert (last_lease(store, "job", before=2).note, last_lease(store, "job").note) == ("at 1005", "")


def test_a_beat_begins_the_term_anew_and_shows_life(clock):
    store = open_store("memory:")
    lease = take_lease(store, "job", worker="a", clock=clock)
    watch = LeaseWatch(store, clock)
    for _ in range(3):
        assert watched(watch, clock, 50) is None
        lease.beat()
    assert watched(watch, clock, 1) is None
    assert not watch.may_be_dead("job")
    assert take_lease(store, "job", worker="c", clock=BeatingClock(lease)) is None


@pytest.mark.parametrize("ahead_s", [-1e9, -61.0, 61.0, 1e9])
def test_a_watchers_clock_that_is_wrong_takes_nothing_from_who_lives(clock, ahead_s):
    store = open_store("memory:")
    holder = take_lease(store, "job", worker="a", clock=clock)
    expected = ManualClock(clock.at_s + ahead_s)
    watch = LeaseWatch(store, expected)
    for _ in range(100):
        assert watched(watch, expected, 5) is None
        holder.beat()  # the holder's clock stands still, too


def test_a_machine_that_stood_still_gives_its_holders_time_to_beat(clock):
    store = open_store("memory:")
    lease = take_lease(store, "job", worker="a", clock=clock)
    watch = LeaseWatch(store, clock)
    assert watched(watch, clock, 1) is None
    clock.at_s += 10_000
    assert watched(watch, clock, 30) is None
    lease.beat()
    assert watched(watch, clock, 60) is None


def test_who_waits_heeds_the_term_of_the_holder(clock):
    store = open_store("memory:")
    take_lease(store, "job", worker="a", clock=clock, term_s=600.0)
    watch = LeaseWatch(store, clock)
    assert watched(watch, clock, 599) is None
    assert watched(watch, clock, 10) is not None


def test_leases_go_on_past_the_9_999th(clock):
    store = open_store("memory:")
    for number in (1, 9_998, 9_999, 10_000):
        store.put(f"job/lease-{number:04d}.json", b'{"worker": "a", "acquired_s": 1, "beat_s": 2, "is_released": true}')
    watch = LeaseWatch(store, clock)
    for expected in (10_001, 10_002):
        lease = watch.take("job", worker="b")
        assert lease.number == expected
        assert lease.is_newest()
        lease.beat(release=True)
    assert [state.worker for state in leases(store, "job")] == ["a"] * 4 + ["b"] * 2


def test_who_did_not_hear_that_it_got_the_lease_holds_it_all_the_same(clock):
    inner = open_store("memory:")
    store = FailingStore(inner, {1: "lost"}, clock)
    lease = take_lease(patient(store, clock), "job", worker="a", clock=clock)
    assert lease.is_newest()
    assert [state.worker for state in leases(inner, "job")] == ["a"]


def test_a_released_lease_is_free_at_once_whatever_happened(clock):
    store = open_store("memory:")
    with pytest.raises(RuntimeError), holding(take_lease(store, "job", worker="a", clock=clock)):
        raise RuntimeError
    assert take_lease(store, "job", worker="b", clock=clock) is not None


def test_a_lease_with_a_short_term_beats_more_often(clock):
    store = open_store("memory:")
    with holding(take_lease(store, "job", worker="a", clock=clock, term_s=0.1), beat_s=1e9):
        while last_lease(store, "job").beat_s == clock.at_s:
            sleep(0.005)


def test_a_lease_beats_while_its_holder_works(clock):
    store = open_store("memory:")
    with holding(take_lease(store, "job", worker="a", clock=clock), beat_s=0.01):
        clock.at_s += 30
        for _ in range(1000):
            if leases(store, "job")[0].beat_s >= clock.at_s:
                break
            sleep(0.005)
        assert leases(store, "job")[0].beat_s >= clock.at_s


def test_the_time_of_dead_holders_is_on_the_account(clock):
    store = open_store("memory:")
    take_lease(store, "job", worker="a", clock=clock)
    clock.at_s += 100
    with holding(take_lease(store, "job", worker="b", clock=clock)) as second:
        clock.at_s += 7
        second.beat()
    assert [state.held_s for state in leases(store, "job")] == pytest.approx([0.0, 7.0])


def test_of_many_who_want_a_lease_one_gets_it(clock):
    store = open_store("memory:")
    with ThreadPoolExecutor(8) as pool:
        acquired = list(pool.map(lambda _: LeaseWatch(store, clock).take("job", worker="a"), range(32)))
    assert sum(lease is not None for lease in acquired) == 1


def test_a_lease_that_was_cut_short_holds_nothing(clock):
    store = open_store("memory:")
    store.put("job/lease-0001.json", b'{"worker": "a", "tak')
    assert take_lease(store, "job", worker="b", clock=clock) is not None


def test_what_a_newer_assay_says_of_a_lease_beside_makes_it_no_free_one(clock):
    store = open_store("memory:")
    state = {"worker": "a", "acquired_s": 1.0, "beat_s": 2.0, "is_released": False, "colour": "blue"}
    store.put("job/lease-0001.json", json.dumps(state).encode())
    assert LeaseWatch(store, clock).take("job", worker="b") is None
