"""The meeting place: races, lost answers, deadlines, and clusters that do not belong together."""

from collections.abc import Callable
from typing import Any

import pytest

from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, DamagedDataError, DataError
from assay.records.outer import ClusterAnnounced, LaneSteps, OuterPart
from assay.store.faulty import FlakyStore
from assay.store.objects import ObjectStore, open_store
from assay.training.outer.config import OuterConfig
from assay.training.outer.meeting import READS, Meeting, check_puts
from assay.training.outer.state import OuterState
from clocks import ManualClock
from failing_store import TROUBLES, FailingStore, Trouble, patient

CONFIG = OuterConfig(every=5, clusters=2, deadline_s=60.0)


def meeting_of(store: ObjectStore, cluster: str) -> Meeting:
    return Meeting(store, cluster, CONFIG)


def announced(cluster: str, **changes: Any) -> ClusterAnnounced:
    values: dict[str, Any] = {
        "cluster": cluster, "run_id": f"run-{cluster}", "workers": 1, "dataset_fingerprint": "d" * 64,
        "recipe": {"loader": {"lanes": 4}, "seed": 0}, "code_version": "1",
    }  # fmt: skip
    return ClusterAnnounced.model_validate({**values, **changes})


def running_clusters(store: ObjectStore) -> tuple[Meeting, Meeting, OuterState]:
    """Return two clusters and the state before the first outer step."""
    first, second = meeting_of(store, "a"), meeting_of(store, "b")
    first.announce(announced("a"))
    assert not begin(first)
    second.announce(announced("b"))
    assert begin(second) and begin(first)
    return first, second, OuterState.after_entries(first.entries())


def begin(meeting: Meeting, waited_s: float = 0.0, recipe_sha256: str = "r", num_lanes: int = 4) -> bool:
    return meeting.begin(recipe_sha256=recipe_sha256, num_lanes=num_lanes, lane_steps=12, waited_s=waited_s)


def part_of(state: OuterState, cluster: str, change: bytes = b"change", **changes: Any) -> OuterPart:
    lanes = [(lane, *state.planned(lane)) for lane in state.lanes[cluster]]
    part = OuterPart(
        outer_step=state.outer_step + 1, cluster=cluster, weight=1, change_sha256=sha256_of_bytes(change),
        num_bytes=len(change), weights_digest="w" * 64, moments_digest="", last_moments_digest="", inner_s=1.0,
        lanes=tuple(LaneSteps(lane=lane, from_step=a, to_step=b, num_rows=0, rows_digest="0") for lane, a, b in lanes),
    )  # fmt: skip
    return part.model_copy(update=changes)


def test_of_two_clusters_that_put_an_entry_both_read_the_first() -> None:
    first, second, state = running_clusters(open_store("memory:"))
    first.put_part(part_of(state, "a"), b"change")
    assert first.poll(state, may_close=False) is None
    # `first` closes the outer step while `second` has not looked since: its entry with both parts comes too late.
    assert second.poll(state, may_close=False) is None
    entry = first.poll(state, may_close=True)
    second.put_part(part_of(state, "b"), b"change")
    assert entry is not None and [part.cluster for part in entry.parts] == ["a"]
    assert second.poll(state, may_close=True) == entry


def test_an_outer_step_with_all_parts_needs_no_deadline() -> None:
    first, second, state = running_clusters(open_store("memory:"))
    second.put_part(part_of(state, "b"), b"change")
    first.put_part(part_of(state, "a"), b"change")
    entry = second.poll(state, may_close=False)
    assert entry is not None and [part.cluster for part in entry.parts] == ["a", "b"]
    assert first.poll(state, may_close=False) == entry


def test_the_run_begins_after_the_deadline_with_who_is_there() -> None:
    meeting = meeting_of(open_store("memory:"), "a")
    meeting.announce(announced("a"))
    assert not begin(meeting, waited_s=59.9) and begin(meeting, waited_s=60.0)
    assert OuterState.after_entries(meeting.entries()).lanes == {"a": (0, 1, 2, 3)}


def test_a_part_that_was_put_before_is_put_again_in_silence() -> None:
    first, _, state = running_clusters(open_store("memory:"))
    for inner_s in (1.0, 2.0):
        first.put_part(part_of(state, "a", inner_s=inner_s), b"change")


def test_another_part_of_the_same_outer_step_is_refused() -> None:
    first, _, state = running_clusters(open_store("memory:"))
    first.put_part(part_of(state, "a"), b"change")
    with pytest.raises(DataError, match=r"with other results \(change_sha256, num_bytes\)"):
        first.put_part(part_of(state, "a", change=b"other one"), b"other one")


def test_clusters_with_different_weights_take_no_outer_step() -> None:
    first, second, state = running_clusters(open_store("memory:"))
    first.put_part(part_of(state, "a"), b"change")
    second.put_part(part_of(state, "b", weights_digest="v" * 64), b"change")
    with pytest.raises(DataError, match="a: wwwwwwwwwwww…, b: vvvvvvvvvvvv…"):
        first.poll(state, may_close=False)
    assert len(first.entries()) == 1


class CorruptingStore:
    """Known to be bad: it damages the first `num_reads` reads of changes."""

    def __init__(self, inner: ObjectStore, num_reads: int) -> None:
        self._inner, self.num_reads = inner, num_reads

    def get(self, key: str) -> bytes:
        data = self._inner.get(key)
        if key.startswith("changes/") and self.num_reads > 0:
            self.num_reads -= 1
            return b"x" + data[1:]
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_change_is_read_again_until_its_digest_is_right() -> None:
    first, _, state = running_clusters(open_store("memory:"))
    part = part_of(state, "a")
    first.put_part(part, b"change")
    damaged: list[Any] = [CorruptingStore(first.store, reads) for reads in (2, 3)]
    assert meeting_of(damaged[0], "b").change(part) == b"change"
    with pytest.raises(DamagedDataError, match=f"changes/{part.change_sha256} has the digest .*, not that of its name"):
        meeting_of(damaged[1], "b").change(part)


def flip(store: ObjectStore, key: str) -> None:
    data = store.get(key)
    store.put(key, data[:-1] + bytes([data[-1] ^ 1]))


Damage = Callable[[ObjectStore, str], None]
DAMAGES: dict[str, Damage] = {
    "flipped": flip,
    "truncated": lambda store, key: store.put(key, store.get(key)[:-1]),
    "removed": lambda store, key: store.delete(key),
}
damages = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


@damages
def test_a_damaged_change_is_not_named_until_its_cluster_has_put_it_again(damage: Damage) -> None:
    first, second, state = running_clusters(open_store("memory:"))
    first.put_part(part := part_of(state, "a", b"of a"), b"of a")
    damage(first.store, key := f"changes/{part.change_sha256}")
    second.put_part(part_of(state, "b", b"of b"), b"of b")
    assert second.poll(state, may_close=False) is None
    entry = first.poll(state, may_close=False)
    assert first.store.get(key) == b"of a" and not [*first.store.list("damaged/")]
    assert entry is not None and second.poll(state, may_close=False) == entry
    assert second.changes(entry) == [b"of a", b"of b"]


@damages
def test_a_damaged_change_counts_as_absent_at_the_deadline(damage: Damage) -> None:
    first, second, state = running_clusters(open_store("memory:"))
    first.put_part(part := part_of(state, "a", b"of a"), b"of a")
    damage(first.store, f"changes/{part.change_sha256}")
    second.put_part(part_of(state, "b", b"of b"), b"of b")
    entry = second.poll(state, may_close=True)
    assert entry is not None and [item.cluster for item in entry.parts] == ["b"] and entry.absent == {"a": 1}


@damages
def test_a_named_change_that_is_damaged_is_waited_for_and_named_in_the_end(damage: Damage) -> None:
    first, second, state = running_clusters(open_store("memory:"))
    first.put_part(part := part_of(state, "a", b"of a"), b"of a")
    damage(first.store, key := f"changes/{part.change_sha256}")
    entry = first.poll(state, may_close=True)
    assert entry is not None and first.changes(entry) == [b"of a"]
    assert second.poll(state, may_close=True) is None
    with pytest.raises(DamagedDataError, match=f"{key} .*cluster 'a' in outer step 1.*--outer 1 --restore"):
        second.poll(state, may_close=True, must_read=True)
    first.poll(state.after(entry), may_close=False)
    assert second.poll(state, may_close=True) == entry and second.changes(entry) == [b"of a"]


def test_a_damaged_change_is_not_read_at_every_poll() -> None:
    first, second, state = running_clusters(open_store("memory:"))
    first.put_part(part_of(state, "a"), b"change")
    corrupting: Any = CorruptingStore(second.store, num_reads=100)
    second = meeting_of(corrupting, "b")
    for _ in range(5):
        assert second.poll(state, may_close=False) is None
    assert corrupting.num_reads == 100 - READS


@damages
def test_a_damaged_part_counts_as_absent_until_it_is_put_again(damage: Damage) -> None:
    first, second, state = running_clusters(open_store("memory:"))
    for meeting in (first, second):
        meeting.put_part(part_of(state, meeting.cluster), b"change")
    damage(first.store, "parts/00000001-a.json")
    assert second.poll(state, may_close=False) is None
    first.put_part(part_of(state, "a"), b"change")
    assert second.poll(state, may_close=False) is not None


def test_an_edited_entry_is_refused() -> None:
    store = open_store("memory:")
    first, _, state = running_clusters(store)
    first.put_part(part_of(state, "a"), b"change")
    assert first.poll(state, may_close=True) is not None
    data = store.get("outer/00000001.json")
    store.put("outer/00000001.json", data.replace(b'"weight":1', b'"weight":2'))
    with pytest.raises(DamagedDataError, match=r"outer/00000001\.json: it has not the digest"):
        meeting_of(store, "c").entries()
    store.put("outer/00000001.json", data)
    store.put("outer/00000000.json", store.get("outer/00000000.json").replace(b'"lane_steps":12', b'"lane_steps":13'))
    with pytest.raises(DamagedDataError, match=r"outer/00000000\.json: it has not the digest"):
        meeting_of(store, "c").entries()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"recipe": {"loader": {"lanes": 4}, "seed": 1}}, "cluster 'a' trains with seed=0, this one with seed=1"),
        ({"recipe": {"loader": {"lanes": 8}, "seed": 1}}, "loader.lanes=4, this one with loader.lanes=8, and 1 more"),
        ({"dataset_fingerprint": "e" * 64}, "cluster 'a' has dataset dddddddddddd, this one eeeeeeeeeeee"),
        ({"code_version": "2"}, "cluster 'a' has version of assay 1, this one 2"),
        ({"cluster": "a", "run_id": "other"}, "cluster 'a' is run 'run-a' there"),
        ({"workers": 4}, r"the clusters have 5 workers \(a: 1, b: 4\)"),
    ],
)
def test_clusters_that_do_not_belong_together_are_refused_before_anything_is_put(changes: Any, message: str) -> None:
    store = open_store("memory:")
    meeting_of(store, "a").announce(announced("a"))
    with pytest.raises(ConfigError, match=message):
        meeting_of(store, "b").announce(announced("b", **changes) if "cluster" not in changes else announced(**changes))
    assert [item.key for item in store.list("")] == ["clusters/a.json"]


def test_another_recipe_is_refused_once_the_run_began() -> None:
    first, _, _ = running_clusters(open_store("memory:"))
    with pytest.raises(ConfigError, match="another recipe is trained there"):
        begin(first, recipe_sha256="other")


def test_a_cluster_may_join_a_run_that_began_though_all_lanes_have_workers() -> None:
    store = open_store("memory:")
    running_clusters(store)
    meeting_of(store, "c").announce(announced("c", workers=3))


class ReplacingStore(FlakyStore):
    """Known to be bad: no conditional put."""

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        self.put(key, data)
        return True


def test_a_store_without_conditional_put_is_refused_and_left_empty() -> None:
    store = ReplacingStore(open_store("memory:"))
    with pytest.raises(ConfigError, match="replaces an object that is to be put only if absent"):
        check_puts(store)
    check_puts(open_store("memory:"))
    assert not list(store.list(""))


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_trouble_at_any_call_changes_no_outer_step(trouble: Trouble) -> None:
    number = 0
    while True:
        clock = ManualClock()
        failing = FailingStore(open_store("memory:"), {number: trouble}, clock)
        first, second, state = running_clusters(patient(failing, clock))
        for meeting in (first, second):
            meeting.put_part(part_of(state, meeting.cluster), b"change")
        entries = [meeting.poll(state, may_close=False) for meeting in (first, second)]
        assert entries[0] == entries[1] and entries[0] is not None and len(entries[0].parts) == 2
        assert first.change(entries[0].parts[0]) == b"change"
        number += 1
        if number > failing.num_calls:
            return
