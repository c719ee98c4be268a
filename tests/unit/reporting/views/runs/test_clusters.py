"""What a page says of several clusters: from the log of outer steps, and from what each cluster put there."""

from pathlib import Path

import pytest

from assay.records.goodput import Goodput, goodput_key
from assay.records.outer import LaneSteps, OuterBegan, OuterPart, OuterStep
from assay.records.phase import Phase
from assay.records.run import ClusterOf
from assay.reporting.document import Block, FactList, Figure, TitledTable, text_of
from assay.reporting.documents.runs.clusters import clusters_blocks
from assay.reporting.views.runs.clusters import ClustersView, clusters_view
from assay.store.logs.outer_log import outer_log
from assay.store.objects import ObjectStore, open_store

LANES = {"a": (0, 1), "b": (2, 3)}


def part(cluster: str, outer_step: int) -> OuterPart:
    lanes = tuple(
        LaneSteps(lane=lane, from_step=5 * outer_step - 5, to_step=5 * outer_step, num_rows=20, rows_digest="")
        for lane in LANES[cluster]
    )
    return OuterPart(
        outer_step=outer_step, cluster=cluster, lanes=lanes, weight=700, change_sha256="", num_bytes=1000,
        weights_digest="", moments_digest="", last_moments_digest="", inner_s=2.0,
    )  # fmt: skip


def goodput(seconds: dict[Phase, float], cost: float | None = None) -> Goodput:
    return Goodput(
        run_ids=("run",), num_open_attempts=0, held_device_s=sum(seconds.values()), by_phase=seconds, interruptions=(),
        num_commits=1, commit_s=None, failure_s=None, optimal_commit_s=None, step_s=None, cost=cost,
        currency="" if cost is None else "EUR",
    )  # fmt: skip


@pytest.fixture
def meeting(tmp_path: Path) -> ObjectStore:
    """Two clusters after three outer steps; b is late for the second one."""
    store = open_store(str(tmp_path))
    log = outer_log(store)
    for entry in (
        OuterBegan(recipe_sha256="", dataset_fingerprint="", inner_steps=5, lane_steps=20, lanes=LANES),
        OuterStep(outer_step=1, parts=(part("a", 1), part("b", 1)), lanes=LANES),
        OuterStep(outer_step=2, parts=(part("a", 2),), lanes=LANES, absent={"b": 1}),
        OuterStep(outer_step=3, parts=(part("a", 3), part("b", 2)), lanes=LANES),
    ):
        log.append(lambda _, entry=entry: entry)  # type: ignore[misc]
    return store


def view_of(store: ObjectStore, own: Goodput) -> ClustersView:
    return clusters_view(ClusterOf(cluster="a", meeting_url=store.url), own)


def facts(blocks: list[Block]) -> dict[str, str]:
    items = [item for block in blocks if isinstance(block, FactList) for item in block.items]
    return {item.name: text_of(item.value) for item in items}


def test_a_view_counts_the_parts_rows_and_bytes_of_each_cluster(meeting: ObjectStore) -> None:
    view = view_of(meeting, goodput({}))
    assert (view.outer_steps, view.lane_steps, view.lane_positions) == (3, 20, (15, 15, 10, 10))
    found = [
        (item.num_parts, item.num_absent, item.num_rows, item.weight, item.num_bytes) for item in view.clusters.values()
    ]
    assert found == [(3, 0, 120, 2100, 3000), (2, 1, 80, 1400, 2000)]
    table = next(
        block for block in clusters_blocks(view) if isinstance(block, TitledTable) and block.title == "Last outer steps"
    )
    assert [[text_of(cell) for cell in row] for row in table.table.rows] == [
        ["1", "40 in 2 s", "40 in 2 s", "2.0 kB"],
        ["2", "40 in 2 s", "absent", "1.0 kB"],
        ["3", "40 in 2 s", "40 in 2 s", "2.0 kB"],
    ]  # fmt: skip


def test_device_time_and_cost_are_those_of_all_clusters(meeting: ObjectStore) -> None:
    others = goodput({"compute": 60.0, "late": 30.0, "meeting": 10.0}, 1.5)
    meeting.put(goodput_key("b"), others.to_sealed_json().encode())
    blocks = list(clusters_blocks(view_of(meeting, goodput({"compute": 90.0, "meeting": 10.0}, 1.0))))
    assert (facts(blocks)["cost"], facts(blocks)["goodput"]) == ("2.50 EUR", "75.0%")
    (figure,) = (block for block in blocks if isinstance(block, Figure))
    bars = {name: dict(seconds) for name, seconds in figure.chart.bars}  # type: ignore[attr-defined]
    assert {phase: seconds for phase, seconds in bars["all"].items() if seconds} == {
        "compute": 150.0, "meeting": 20.0, "late": 30.0,
    }  # fmt: skip
    goodputs = next(block for block in blocks if isinstance(block, TitledTable) and not block.title)
    assert [tuple(row[1:3]) for row in goodputs.table.of_columns(["cluster", "device time", "goodput"]).rows] == [
        ("1 min 40 s", "90.0%"), ("1 min 40 s", "60.0%"),
    ]  # fmt: skip


def test_what_is_not_known_of_a_cluster_is_said_and_no_sum_pretends_to_be_whole(meeting: ObjectStore) -> None:
    found = facts(list(clusters_blocks(view_of(meeting, goodput({"compute": 90.0}, 1.0)))))
    assert found["device time"] == "not known of b"
    assert not {"cost", "goodput"} & {*found}


def test_a_meeting_place_that_cannot_be_read_is_named(meeting: ObjectStore) -> None:
    meeting.put("outer/00000002.json", b"{}")
    view = view_of(meeting, goodput({}))
    assert "outer/00000002.json" in view.problem
    assert len(list(clusters_blocks(view))) == 2
