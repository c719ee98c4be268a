"""The cluster whose lanes sleep: its nodes are real but for that, and its steps take what the setting says."""

import json

import pytest

from cluster import Cluster, Setting, cluster
from network_links import linked_nodes, missing

SETTING = Setting(
    workers=3,
    nodes=3,
    lanes=8,
    lane_s=0.05,
    step_time_sd=0.2,
    gradient_bytes=250_000,
    rate="40mbit",
    steps=30,
    commit_every=4,
)


def test_where_no_namespace_can_be_made_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert missing() == "no program 'ip' (Debian: iproute2)"


def test_what_leaves_a_node_is_counted_and_each_has_a_name_of_its_own(netns) -> None:
    with linked_nodes(2, "100mbit") as (first, second):
        assert first.namespace != second.namespace
        before = first.sent_bytes()
        assert before >= 0


def digest_of(launched: Cluster) -> str:
    shown = json.loads(launched.assay("runs", "show", "asleep", "--json"))
    assert shown["status"] == "succeeded" and shown["audit"]["verdict"] == "pass"
    return shown["weights_digest"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_steps_take_what_the_busiest_rank_sleeps_and_a_killed_node_changes_no_bit(netns) -> None:
    with cluster(SETTING) as created:
        created.start()
        created.until(lambda: created.last_commit() >= 8)
        created.nodes[2].kill()
        created.wait(240)
        first, second = created.attempts()
        assert (first.world_size, second.world_size, second.outcome) == (3, 2, "succeeded")
        assert len(set(first.hosts)) == 3
        steps = created.measured(first)
        killed = digest_of(created)
    assert first.loads == (3, 3, 2) and second.loads == (4, 4)
    # That of a busy machine has no upper limit.
    assert steps.median_step_s > steps.most_own_s * 0.9 > 0.8 * 3 * SETTING.lane_s
    assert sum(steps.phases.values()) == pytest.approx(steps.step_s, rel=0.02)
    with cluster(SETTING._replace(workers=1, nodes=1)) as created:
        created.start()
        created.wait(240)
        assert digest_of(created) == killed
