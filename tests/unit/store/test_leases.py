"""Who works at what."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from assay.store.leases import holding, leases, take_lease
from assay.store.objects import open_store
from clocks import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock(1000.0)


def test_a_held_lease_is_nobody_elses_until_its_holder_is_silent(clock):
    store = open_store("memory:")
    first = take_lease(store, "job", worker="a", clock=clock)
    assert take_lease(store, "job", worker="b", clock=clock) is None
    clock.at_s += 59
    assert take_lease(store, "job", worker="b", clock=clock) is None
    clock.at_s += 2
    second = take_lease(store, "job", worker="b", clock=clock)
    assert second.is_newest()
    assert not first.is_newest()


def test_a_beat_keeps_a_lease(clock):
    store = open_store("memory:")
    lease = take_lease(store, "job", worker="a", clock=clock)
    clock.at_s += 50
    lease.beat()
    clock.at_s += 50
    assert take_lease(store, "job", worker="b", clock=clock) is None


def test_a_released_lease_is_free_at_once_whatever_happened(clock):
    store = open_store("memory:")
    with pytest.raises(RuntimeError), holding(take_lease(store, "job", worker="a", clock=clock)):
        raise RuntimeError
    assert take_lease(store, "job", worker="b", clock=clock) is not None


def test_a_lease_beats_while_its_holder_works(clock):
    store = open_store("memory:")
    with holding(take_lease(store, "job", worker="a", clock=clock), beat_s=0.01):
        clock.at_s += 30
        for _ in range(1000):
            if leases(store, "job")[0].beat_s == clock.at_s:
                break
            import time

            time.sleep(0.005)
        assert leases(store, "job")[0].beat_s == clock.at_s


def test_the_time_of_dead_holders_is_on_the_account(clock):
    store = open_store("memory:")
    take_lease(store, "job", worker="a", clock=clock)
    clock.at_s += 100
    with holding(take_lease(store, "job", worker="b", clock=clock)) as second:
        clock.at_s += 7
        second.beat()
    assert [state.held_s for state in leases(store, "job")] == [0.0, 7.0]


def test_of_many_who_want_a_lease_one_gets_it(clock):
    store = open_store("memory:")
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda k: take_lease(store, "job", worker=str(k), clock=clock), range(32)))
    assert sum(lease is not None for lease in taken) == 1


def test_a_lease_that_was_cut_short_holds_nothing(clock):
    store = open_store("memory:")
    store.put("job/lease-0001.json", b'{"worker": "a", "tak')
    assert take_lease(store, "job", worker="b", clock=clock) is not None
