"""Two who want one job, on machines whose clocks differ, by turns and with sleep between any two calls."""

import json
from collections.abc import Callable

import pytest

from assay.base.errors import FencedError
from assay.store.leases import Lease, LeaseWatch, leases
from assay.store.objects import ObjectStore, open_store
from interleaving import OffClock, Stage
from variants import slow

TERM_S, BEAT_S, NUM_ENTRIES = 60.0, 5.0, 12


class JobLog:
    """Entries put if absent, each at the number after the last: who adds one has read all before it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.entries: list[tuple[int, int]] = []
        """(lease, what)."""

    def read(self) -> list[tuple[int, int]]:
        while self._store.exists(key := f"job/log/{len(self.entries):04d}"):
            self.entries.append(tuple(json.loads(self._store.get(key))))
        return self.entries

    def add(self, lease: int, what: int) -> None:
        while lease >= max((held for held, _ in self.read()), default=0):
            if self._store.put_if_absent(f"job/log/{len(self.entries):04d}", json.dumps([lease, what]).encode()):
                return
        raise FencedError(f"lease {lease} was replaced")


Take = Callable[[ObjectStore, OffClock], Callable[[], Lease | None]]
Add = Callable[[JobLog, ObjectStore, Lease, int], None]


def by_watching(store: ObjectStore, clock: OffClock) -> Callable[[], Lease | None]:
    watch = LeaseWatch(store, clock)
    return lambda: watch.take("job", worker="w", term_s=TERM_S)


def by_comparing_clocks(store: ObjectStore, clock: OffClock) -> Callable[[], Lease | None]:
    """Known to be bad: a holder is dead when its last beat, by its own clock, is a term old by ours."""
    watch = LeaseWatch(store, clock)

    def take() -> Lease | None:
        known = leases(store, "job")
        if known and clock.now_s() - known[-1].beat_s >= TERM_S:
            released = known[-1]._replace(is_released=True)
            store.put(f"job/lease-{len(known):04d}.json", json.dumps(released._asdict()).encode())
        return watch.take("job", worker="w", term_s=TERM_S)

    return take


def fenced(log: JobLog, store: ObjectStore, lease: Lease, what: int) -> None:
    log.add(lease.number, what)


def look_before_you_write(log: JobLog, store: ObjectStore, lease: Lease, what: int) -> None:
    """Known to be bad: somebody may take over between the look and the write."""
    if not lease.is_newest():
        raise FencedError("replaced")
    while not store.put_if_absent(f"job/log/{len(log.read()):04d}", json.dumps([lease.number, what]).encode()):
        pass


def worker(take: Take, add: Add, held: list[int]) -> Callable[[OffClock, ObjectStore], None]:
    """Takes the job, beats and adds entries until the job has all."""

    def body(clock: OffClock, store: ObjectStore) -> None:
        request, log = take(store, clock), JobLog(store)
        while len(log.read()) < NUM_ENTRIES:
            lease = request()
            if lease is None:
                clock.sleep_s(1.0)
                continue
            held.append(lease.number)
            try:
                for what in range(NUM_ENTRIES):
                    lease.beat()
                    clock.sleep_s(BEAT_S)
                    add(log, store, lease, what)
            except FencedError:
                continue
            lease.beat(release=True)

    return body


def simulate(seed: int, *, take: Take = by_watching, add: Add = fenced, nap_s: float) -> list[int]:
    """Whose lease added each entry, in the order of the log."""
    stage, store, held = Stage(seed, tick_s=0.4, num_steps=20_000, nap_s=nap_s), open_store("memory:"), []
    for ahead_s in (stage.rng.uniform(-3600, 3600), 0.0):
        clock = OffClock(stage, ahead_s=ahead_s, rate=stage.rng.uniform(0.9, 1.1), jumps_s=120.0)
        stage.add(worker(take, add, held), store, clock)
    stage.play()
    holders = [lease for lease, _ in JobLog(store).read()]
    assert len(holders) >= NUM_ENTRIES, f"seed {seed}: nobody finished the job"
    assert sorted(held) == list(range(1, len(held) + 1)), f"seed {seed}: a lease has two holders"
    return holders


@pytest.mark.parametrize("seed", [*range(10), *slow(*range(10, 100))])
def test_who_lives_keeps_the_job_whatever_the_clocks_say(seed: int) -> None:
    assert simulate(seed, nap_s=0)[:NUM_ENTRIES] == [1] * NUM_ENTRIES


@pytest.mark.parametrize("seed", [*range(10), *slow(*range(10, 200))])
def test_who_slept_through_its_term_adds_nothing_behind_its_successor(seed: int) -> None:
    holders = simulate(seed, nap_s=200)
    assert holders == sorted(holders)


def test_the_simulation_finds_leases_that_compare_clocks() -> None:
    assert any(simulate(seed, take=by_comparing_clocks, nap_s=0)[:NUM_ENTRIES] != [1] * 12 for seed in range(10))


def test_the_simulation_finds_who_looks_before_it_writes() -> None:
    logs = (simulate(seed, add=look_before_you_write, nap_s=200) for seed in range(100))
    assert any(holders != sorted(holders) for holders in logs)
