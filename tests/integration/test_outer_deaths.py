"""Clusters in one process: deaths, absences and late parts in simulated time, and replays of what they did."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.distributed.ranks import Ranks
from assay.records.outer import OuterStep
from assay.records.replay import PartReplay
from assay.store.commit_log import CommitLog
from assay.store.logs.outer_log import outer_log
from assay.store.objects import ObjectStore, open_store
from assay.training.audit import audit_run
from assay.training.methods.registry import method_of
from assay.training.outer.cluster import ClusterTrainer
from assay.training.outer.meeting import Meeting
from assay.training.outer.replay import replay_cluster
from assay.training.trainer.context import RankContext
from clocks import ManualClock
from lying_store import LyingStore
from outer_clusters import Life, SimulatedCluster, cluster_run, loader_of, train_clusters

INNER_STEPS = 5
LATE_SLOW = [pytest.param(seed, 2, marks=pytest.mark.slow) for seed in range(1, 5)]
LATE_SOAK = [pytest.param(seed, 2, marks=pytest.mark.soak) for seed in range(5, 40)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """This process alone, with the real groups."""
    rendezvous = tmp_path_factory.mktemp("ranks") / "rendezvous"
    before = torch.get_num_threads()
    ranks = Ranks.join(rank=0, world_size=1, rendezvous=f"file://{rendezvous}", num_threads=1)
    yield ranks
    ranks.leave()
    torch.set_num_threads(before)


Clusters = Callable[..., list[SimulatedCluster]]


@pytest.fixture
def clusters(tiny_recipe_tree: dict[str, Any], tmp_path: Path, ranks: Ranks) -> Clusters:
    """Make clusters: `clusters("abc", lives, deadline_s=...)`."""

    def make(
        names: str,
        lives: Sequence[Life],
        *,
        folder: str = "clusters",
        epochs: int = 1,
        trainer_class: type[ClusterTrainer] = ClusterTrainer,
        **outer: Any,
    ) -> list[SimulatedCluster]:
        outer = {"every": INNER_STEPS, "clusters": len(names), "deadline_s": 20.0, **outer}
        tree = {**tiny_recipe_tree, "outer": outer}
        tree["trainer"] = {**tree["trainer"], "epochs": epochs}
        return [
            SimulatedCluster(name, cluster_run(tree, tmp_path / folder, name), ranks, life, trainer_class)
            for name, life in zip(names, lives, strict=True)
        ]

    return make


def quiet(**changes: Any) -> Life:
    return Life(random.Random(0), **changes)


def final_digests(clusters: Sequence[SimulatedCluster]) -> set[str]:
    logs = [CommitLog(open_store(cluster.run.store_url)).finished() for cluster in clusters]
    return {finished.weights_digest for finished in logs if finished is not None}


def verdicts(clusters: Sequence[SimulatedCluster]) -> list[tuple[str, tuple[str, ...]]]:
    reports = [
        audit_run(cluster.run, CommitLog(open_store(cluster.run.store_url)), weights="all") for cluster in clusters
    ]
    return [(report.verdict, report.problems) for report in reports]


def steps_of(cluster: SimulatedCluster) -> list[OuterStep]:
    assert cluster.run.cluster_of is not None
    entries = outer_log(open_store(cluster.run.cluster_of.meeting_url)).state() or ()
    return [entry for entry in entries if isinstance(entry, OuterStep)]


def replayed(cluster: SimulatedCluster) -> tuple[list[PartReplay], set[str]]:
    """Replay all clusters from the record."""
    recipe, of = cluster.recipe, cluster.run.cluster_of
    assert recipe.outer is not None and of is not None
    meeting = Meeting(open_store(of.meeting_url), of.cluster, recipe.outer)
    context = RankContext(
        cluster.ranks, method_of(recipe.method), loader_of(recipe), recipe.trainer, recipe.seed,
        CommitLog(open_store(cluster.run.store_url)), ManualClock(),
    )  # fmt: skip
    steps = steps_of(cluster)
    names = sorted({part.cluster for step in steps for part in step.parts})
    found = [replay_cluster(context, recipe.outer, meeting, name, len(steps)) for name in names]
    return [part for parts, _ in found for part in parts], {digest for _, digest in found}


def check_all(clusters: Sequence[SimulatedCluster]) -> None:
    """All clusters have the weights of a replay of the record, and every row was trained once."""
    assert verdicts(clusters) == [("pass", ())] * len(clusters)
    parts, digests = replayed(clusters[0])
    assert not [part for part in parts if part.differing]
    assert len(parts) == sum(len(step.parts) for step in steps_of(clusters[0]))
    assert digests == final_digests(clusters) and len(digests) == 1


@pytest.mark.slow
def test_a_replay_of_two_undisturbed_clusters_is_equal(clusters: Clusters) -> None:
    group = clusters("ab", [quiet(), quiet()])
    train_clusters(group, 0)
    assert [len(step.parts) for step in steps_of(group[0])] == [2, 2, 2, 2]
    check_all(group)


@pytest.mark.slow
def test_deaths_within_the_deadline_change_no_bit(clusters: Clusters, tmp_path: Path) -> None:
    undisturbed = clusters("ab", [quiet(), quiet()], folder="undisturbed", deadline_s=1000.0)
    train_clusters(undisturbed, 0)
    mortal = [Life(random.Random(seed), dies_in=0.05, away_s=5.0) for seed in range(2)]
    group = clusters("ab", mortal, folder="mortal", deadline_s=1000.0)
    train_clusters(group, 1)
    assert sum(cluster.outcomes.count("died") for cluster in group) >= 5
    assert final_digests(group) == final_digests(undisturbed)
    check_all(group)


@pytest.mark.parametrize("seed, epochs", [(0, 1), *LATE_SLOW, *LATE_SOAK])
def test_clusters_that_die_and_come_late_end_with_the_weights_of_a_replay(
    clusters: Clusters, seed: int, epochs: int
) -> None:
    rng = random.Random(seed)
    lives = [Life(random.Random(rng.random()), dies_in=rng.choice([0.0, 0.03]), away_s=60.0) for _ in "abc"]
    group = clusters("abc", lives, epochs=epochs)
    train_clusters(group, seed, nap_s=40.0)
    check_all(group)


@pytest.mark.slow
def test_a_cluster_that_is_away_for_outer_steps_loses_its_lanes_and_gets_lanes_back(clusters: Clusters) -> None:
    group = clusters("ab", [quiet(), quiet(asleep_from=3, asleep_s=110.0)], epochs=5)
    train_clusters(group, 0)
    steps = steps_of(group[0])
    named = [any(part.cluster == "b" for part in step.parts) for step in steps]
    assert named[:2] == [True, True] and named.count(False) >= 10
    away = named.index(False)
    assert "b" not in steps[away + 2].lanes and len(steps[away + 2].lanes["a"]) == 8
    assert any(named[away:]) and steps[-1].lanes["b"]
    check_all(group)


@pytest.mark.slow
def test_a_stop_while_a_cluster_waits_for_the_others_changes_no_bit(clusters: Clusters) -> None:
    undisturbed = clusters("ab", [quiet(), quiet()], folder="undisturbed", deadline_s=1000.0)
    train_clusters(undisturbed, 0)
    group = clusters("ab", [quiet(stops=3), quiet(step_s=3.0)], folder="stopped", deadline_s=1000.0)
    train_clusters(group, 0)
    assert group[0].outcomes.count("stopped") >= 2
    assert final_digests(group) == final_digests(undisturbed)
    check_all(group)


@pytest.mark.slow
def test_changes_that_are_damaged_when_they_are_put_change_no_bit(clusters: Clusters) -> None:
    undisturbed = clusters("ab", [quiet(), quiet()], folder="undisturbed", deadline_s=1000.0)
    train_clusters(undisturbed, 0)
    group = clusters("ab", [quiet(), quiet()], folder="damaged", deadline_s=1000.0)
    stores: list[LyingStore] = []

    def lying(store: ObjectStore) -> Any:
        stores.append(LyingStore(store, seed=0, when_put=0.6, later=0.0, most=4))
        return stores[0]

    train_clusters(group, 0, wrapped=lying)
    assert stores[0].damages_left == 0
    assert final_digests(group) == final_digests(undisturbed)
    check_all(group)


class KeepsMoments(ClusterTrainer):
    """Known to be bad: after a part that came too late, it goes on with that part's moments."""

    def _built(self, slots: tuple[int, ...]) -> Any:
        inner = super()._built(slots)
        inner.outer.return_to_moments = lambda: None
        return inner


class AddsOneByOne(ClusterTrainer):
    """Known to be bad: it adds the changes to the weights one by one, the last first, and rounds each sum."""

    def _built(self, slots: tuple[int, ...]) -> Any:
        inner = super()._built(slots)
        inner.outer._update.update = add_one_by_one
        return inner


def add_one_by_one(weights: Any, momentum: Any, changes: Any) -> None:
    total = sum(weight for weight, _ in changes)
    for weight, change in changes[::-1]:
        for name, tensor in weights.items():
            tensor.add_(change[name], alpha=weight / total)


@pytest.mark.slow
def test_moments_kept_after_a_late_part_are_caught_by_audit_and_replay(clusters: Clusters) -> None:
    late = [quiet(), quiet(asleep_from=2, asleep_s=30.0)]
    group = clusters("ab", late, trainer_class=KeepsMoments, absent_after=5)
    train_clusters(group, 0)
    parts = [part for step in steps_of(group[0]) for part in step.parts]
    assert {part.outer_step for part in parts if part.cluster == "b"} >= {1, 3}
    for verdict, problems in verdicts(group):
        assert verdict == "fail"
        assert any("cluster 'b' did not begin with the moments of outer step 1" in problem for problem in problems)
    first = next(part for part in replayed(group[0])[0] if part.differing)
    assert (first.cluster, first.outer_step) == ("b", 3)
    assert {"moments_digest", "change_sha256"} <= {*first.differing}


@pytest.mark.slow
def test_changes_that_were_added_one_by_one_are_caught_by_a_replay(clusters: Clusters) -> None:
    group = clusters("abc", [quiet() for _ in "abc"], trainer_class=AddsOneByOne)
    train_clusters(group, 0)
    parts, digests = replayed(group[0])
    first = next(part for part in parts if part.differing)
    assert first.outer_step == 2 and "weights_digest" in first.differing
    assert not digests & final_digests(group)
