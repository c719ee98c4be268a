"""Clusters without tensors at the real meeting place: they die, sleep, come late, and their store fails and lies.

A cluster's weights are the digest of the entries that it applied, and of the changes that it read. Each call of the
store is a turn, so two clusters try to put the same entry in many orders; clocks differ by hours.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any

import pytest

from assay.base.errors import DamagedDataError, StoreError
from assay.records.outer import ClusterAnnounced, LaneSteps, OuterBegan, OuterEntry, OuterPart, OuterStep
from assay.store.objects import ObjectStore, open_store
from assay.training.outer.config import OuterConfig
from assay.training.outer.meeting import Meeting, damages, named_parts
from assay.training.outer.state import OuterState
from clocks import ManualClock
from failing_store import TROUBLES, FailingStore, patient
from interleaving import OffClock, Stage
from lying_store import LyingStore
from variants import slow, soaked

LANES, LANE_STEPS, POLL_S, PATIENCE = 8, 60, 2.0, 3
CONFIG = OuterConfig(every=4, clusters=3, deadline_s=20.0)
NUM_OUTER_STEPS = LANE_STEPS // CONFIG.every
MAX_CALLS = 1500
"""Of these calls of a cluster, some fail."""


class Died(BaseException):
    """The cluster's processes are gone."""


class Cluster:
    """A program that takes outer steps; its fields are what is on its disks."""

    meeting_class: type[Meeting] = Meeting

    def __init__(self, name: str, seed: int, *, is_undisturbed: bool = False) -> None:
        self.name = name
        self.rng = random.Random(f"{name} {seed}")
        self.state: OuterState | None = None
        self.weights = ""
        self.num_trained = 0
        """Inner steps since the last outer step."""
        self.longest_wait_s = 0.0
        self.restored: list[int] = []
        """Outer steps with changes that an operator had to restore."""
        self.death_rate = 0.0 if is_undisturbed else self.rng.choice([0.0, 0.01, 0.03])
        troubles = {self.rng.randrange(MAX_CALLS): self.rng.choice(TROUBLES) for _ in range(20)}
        self._troubles = {} if is_undisturbed else troubles

    def body(self, clock: OffClock, store: ObjectStore) -> None:
        manual = ManualClock()
        reliable = patient(FailingStore(store, self._troubles, manual), manual)
        while self.state is None or not self.state.is_done:
            try:
                with suppress(DamagedDataError):
                    self.attempt(clock, reliable)
                self.restore(self.meeting_class(reliable, self.name, CONFIG))
            except (Died, StoreError):  # an object may go between two calls; the supervisor tries again
                clock.sleep_s(self.rng.choice([1.0, 10.0, 10 * CONFIG.deadline_s]))

    def restore(self, meeting: Meeting) -> None:
        """Do what the error says: put the changes of the next outer step again. Their bytes follow from the record."""
        assert self.state is not None
        next_entry = meeting.entries()[self.state.outer_step + 1 :][:1]
        for part, _ in damages(meeting, named_parts(next_entry)):
            meeting.replace_change(part.change_sha256, change_of(part.cluster, part.outer_step))
            self.restored.append(part.outer_step)

    def attempt(self, clock: OffClock, store: ObjectStore) -> None:
        meeting = self.meeting_class(store, self.name, CONFIG)
        meeting.announce(announced(self.name))
        began_s = clock.monotonic_s()
        while not self.is_in_progress(meeting, clock.monotonic_s() - began_s):
            clock.sleep_s(POLL_S)
        if self.state is None:
            self.state = OuterState.after_entries(meeting.entries()[:1])
        while not self.state.is_done:
            entry = self.next_entry(meeting, clock)
            self.may_die()
            self.state, self.num_trained = self.state.after(entry), 0
            self.weights = next_weights(self.weights, entry, meeting.changes(entry))

    def is_in_progress(self, meeting: Meeting, waited_s: float) -> bool:
        return meeting.begin(recipe_sha256="r", num_lanes=LANES, lane_steps=LANE_STEPS, waited_s=waited_s)

    def next_entry(self, meeting: Meeting, clock: OffClock) -> OuterStep:
        assert self.state is not None
        entries = meeting.entries()[self.state.outer_step + 1 :]
        entry = entries[0] if entries else None
        assert not isinstance(entry, OuterBegan)
        lanes = self.state.lanes.get(self.name, ())
        is_named = entry is not None and any(part.cluster == self.name for part in entry.parts)
        if self.state.unfinished(lanes) and (entry is None or is_named):
            while self.num_trained < CONFIG.every:
                clock.sleep_s(1.0)
                self.may_die()
                self.num_trained += 1
            meeting.put_part(*self.part(self.state))
        elif not lanes:
            meeting.request_lanes(self.state)
        return self.awaited(meeting, clock, self.state)

    def awaited(self, meeting: Meeting, clock: OffClock, state: OuterState) -> OuterStep:
        began_s = clock.monotonic_s()
        while True:
            waited_s = clock.monotonic_s() - began_s
            may_close = waited_s >= CONFIG.deadline_s
            must_read = waited_s >= PATIENCE * CONFIG.deadline_s
            entry = meeting.poll(state, may_close=may_close, must_read=must_read)
            self.longest_wait_s = max(self.longest_wait_s, clock.monotonic_s() - began_s)
            if entry is not None:
                return entry
            has_entry = len(meeting.entries()) > state.outer_step + 1
            assert has_entry or not may_close, "it waits past its deadline"
            self.may_die()
            clock.sleep_s(POLL_S)

    def part(self, state: OuterState) -> tuple[OuterPart, bytes]:
        change = change_of(self.name, state.outer_step + 1)
        lanes = state.lanes[self.name]
        part = OuterPart(
            outer_step=state.outer_step + 1, cluster=self.name, weight=1, num_bytes=len(change), inner_s=4.0,
            change_sha256=sha256(change).hexdigest(), weights_digest=self.weights, moments_digest="",
            last_moments_digest="", lanes=tuple(lane_steps(lane, *state.planned(lane)) for lane in lanes),
        )  # fmt: skip
        return part, change

    def may_die(self) -> None:
        if self.rng.random() < self.death_rate:
            raise Died


class CountsLateSteps(Cluster):
    """Known to be bad: a late part's steps count for it, so it goes on behind them."""

    def part(self, state: OuterState) -> tuple[OuterPart, bytes]:
        part, change = super().part(state)
        late = state.absent.get(self.name, 0) * CONFIG.every
        lanes = [steps.model_copy(update={"from_step": steps.from_step + late}) for steps in part.lanes]
        return part.model_copy(update={"lanes": tuple(lanes)}), change


class Credulous(Meeting):
    """Known to be bad: it takes whatever bytes it reads."""

    def change(self, part: OuterPart) -> bytes:
        key = f"changes/{part.change_sha256}"
        return self.store.get(key) if self.store.exists(key) else b""


class CredulousCluster(Cluster):
    """Known to be bad: see `Credulous`."""

    meeting_class = Credulous


class ReplacingStore:
    """Known to be bad: a store without conditional puts."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._inner.put(key, data)
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def change_of(cluster: str, outer_step: int) -> bytes:
    return f"{cluster} {outer_step}".encode()


def next_weights(weights: str, entry: OuterStep, changes: list[bytes]) -> str:
    return sha256(f"{weights}{entry.to_json()}{changes}".encode()).hexdigest()


def lane_steps(lane: int, from_step: int, to_step: int) -> LaneSteps:
    return LaneSteps(lane=lane, from_step=from_step, to_step=to_step, num_rows=0, rows_digest="0")


def announced(name: str) -> ClusterAnnounced:
    return ClusterAnnounced(
        cluster=name, run_id=f"run-{name}", workers={"a": 1, "b": 2, "c": 1}[name],
        recipe={"loader": {"lanes": LANES}}, dataset_fingerprint="d", code_version="1",
    )  # fmt: skip


def simulate(
    seed: int,
    *,
    nap_s: float,
    make: Callable[..., Cluster] = Cluster,
    wrapped: Callable[[ObjectStore], Any] = lambda store: store,
    **arguments: Any,
) -> list[Cluster]:
    """Take all outer steps; return the clusters, after a look at the record."""
    stage, store = Stage(seed, tick_s=0.2, num_steps=60_000, nap_s=nap_s), wrapped(open_store("memory:"))
    clusters = [make(name, seed, **arguments) for name in "abc"]
    for cluster in clusters:
        clock = OffClock(
            stage, ahead_s=stage.rng.uniform(-3600, 3600), rate=stage.rng.uniform(0.9, 1.1), jumps_s=3600.0
        )
        stage.add(cluster.body, store, clock)
    stage.play()
    ends = {(cluster.weights, repr(cluster.state)) for cluster in clusters}
    entries = Meeting(store, "a", CONFIG).entries()
    assert ends == {(final_weights(entries), repr(OuterState.after_entries(entries)))}, f"seed {seed}: weights differ"
    check_record(entries, seed)
    return clusters


def final_weights(entries: tuple[OuterEntry, ...]) -> str:
    """Return the weights that follow from the record alone."""
    weights = ""
    for entry in entries:
        if isinstance(entry, OuterStep):
            changes = [change_of(part.cluster, part.outer_step) for part in entry.parts]
            weights = next_weights(weights, entry, changes)
    return weights


def check_record(entries: tuple[OuterEntry, ...], seed: int) -> None:
    """Each lane's steps are named once and in order, and each lane has one cluster at any time."""
    steps: dict[int, list[int]] = {lane: [] for lane in range(LANES)}
    for entry in entries:
        owned = sorted(lane for lanes in entry.lanes.values() for lane in lanes)
        assert owned == list(range(LANES)), f"seed {seed}: {entry.lanes}"
        for part in entry.parts if isinstance(entry, OuterStep) else ():
            for lane in part.lanes:
                steps[lane.lane] += range(lane.from_step, lane.to_step)
    assert all(found == list(range(LANE_STEPS)) for found in steps.values()), f"seed {seed}: {steps}"


@pytest.mark.parametrize(
    "seeds",
    [
        range(20),
        *slow(range(20, 100), *(range(first, first + 50) for first in range(100, 500, 50))),
        *soaked(*(range(first, first + 50) for first in range(500, 5000, 50))),
    ],
)
def test_each_lane_step_is_named_once_whatever_happens(seeds: range) -> None:
    for seed in seeds:
        simulate(seed, nap_s=30.0)


@pytest.mark.parametrize(
    "seeds",
    [
        range(5),
        *slow(range(5, 60), range(60, 100)),
        *soaked(*(range(first, first + 50) for first in range(100, 1000, 50))),
    ],
)
def test_damaged_changes_are_never_used(seeds: range) -> None:
    for seed in seeds:
        simulate(seed, nap_s=30.0, wrapped=partial(LyingStore, seed=seed))


def test_a_change_that_is_damaged_when_it_is_put_costs_no_part() -> None:
    for seed in range(4):
        lying = partial(LyingStore, seed=seed, later=0.0)
        clusters = simulate(seed, nap_s=0.0, wrapped=lying, is_undisturbed=True)
        # Of the last one, the cluster that could put it again may have ended.
        assert {step for cluster in clusters for step in cluster.restored} <= {NUM_OUTER_STEPS}
        assert {cluster.state.outer_step for cluster in clusters if cluster.state} == {NUM_OUTER_STEPS}


def test_damaged_changes_that_are_used_are_found() -> None:
    with pytest.raises(Exception, match=r"weights differ|different weights"):
        for seed in range(50):
            simulate(seed, nap_s=30.0, make=CredulousCluster, wrapped=partial(LyingStore, seed=seed))


def test_nobody_waits_past_its_deadline() -> None:
    for seed in range(8):
        clusters = simulate(seed, nap_s=0.0)
        assert max(cluster.longest_wait_s for cluster in clusters) <= CONFIG.deadline_s + 10 * POLL_S


def test_undisturbed_clusters_take_as_few_outer_steps_as_there_are() -> None:
    clusters = simulate(0, nap_s=0.0, is_undisturbed=True)
    assert {cluster.state.outer_step for cluster in clusters if cluster.state} == {NUM_OUTER_STEPS}


def test_late_steps_that_count_are_found() -> None:
    with pytest.raises(Exception, match="rows would be skipped or repeated"):
        for seed in range(50):
            simulate(seed, nap_s=30.0, make=CountsLateSteps)


def test_a_store_without_conditional_puts_is_found() -> None:
    with pytest.raises(Exception, match=r"weights differ|changed|does not follow|other results|different weights"):
        for seed in range(50):
            simulate(seed, nap_s=30.0, wrapped=ReplacingStore)
