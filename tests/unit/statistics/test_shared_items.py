"""Benchmarks that score the same items: their luck is one, and a composite does not count it twice."""

import numpy as np
import pytest

from assay.statistics.composite import breadth
from assay.statistics.effect import paired_effect
from assay.statistics.shared_items import ItemCollection, joint_clusters, sharing_groups


def collection(name, num_items, clusters=None):
    ids = [str(index) for index in range(num_items)]
    return ItemCollection(name, ids, np.arange(num_items) if clusters is None else clusters)


def test_a_benchmark_that_is_listed_under_two_names_is_no_surer_than_itself():
    table = np.random.default_rng(0).normal(size=(4, 200)) + np.random.default_rng(1).normal(size=200)
    draws = joint_clusters({"a": collection("rows", 200), "b": collection("rows", 200)})
    twice, once = breadth({"a": table, "b": table}, joint_clusters=draws).composite, paired_effect(table)
    for part in ("mean", "seed_variance", "item_variance", "residual_variance", "item_degrees"):
        assert getattr(twice, part) == pytest.approx(getattr(once, part)), part


def test_benchmarks_of_other_items_are_as_they_were():
    rng = np.random.default_rng(2)
    tables = {name: rng.normal(size=(3, 60)) for name in "abc"}
    draws = joint_clusters({name: collection(name, 60) for name in tables})
    assert breadth(tables, joint_clusters=draws).composite == breadth(tables).composite


@pytest.mark.slow
def test_the_interval_of_two_scores_of_the_same_rows_covers():
    rng, inside = np.random.default_rng(3), []
    draws = joint_clusters({"a": collection("rows", 60), "b": collection("rows", 60)})
    for _ in range(1500):
        rows = 0.3 * rng.normal(size=60) + 0.01 * rng.normal(size=(5, 1))
        tables = {name: rows + 0.05 * rng.normal(size=(5, 60)) for name in "ab"}
        found = breadth(tables, joint_clusters=draws).composite
        inside.append(found.lower(0.975) < 0.0 < found.upper(0.975))
    assert 0.93 <= np.mean(inside) <= 0.97


def test_rows_of_one_file_are_one_draw_in_benchmarks_of_other_rows_where_clusters_have_names_of_the_split():
    functions = ItemCollection("rows", ["1", "2", "3"], np.array([0, 0, 1]), ("x", "x", "y"))
    methods = ItemCollection("rows", ["4", "5"], np.array([0, 1]), ("y", "z"))
    found = joint_clusters({"functions": functions, "methods": methods})
    assert found["functions"][2] == found["methods"][0]
    assert len({*found["functions"].tolist(), *found["methods"].tolist()}) == 3
    unnamed = joint_clusters(
        {"functions": functions._replace(cluster_names=None), "methods": methods._replace(cluster_names=None)}
    )
    assert not set(unnamed["functions"].tolist()) & set(unnamed["methods"].tolist())


def test_items_are_one_draw_through_an_id_or_a_cluster():
    found = joint_clusters(
        {
            "rows": collection("split", 4),
            "by file": collection("split", 4, np.array(["x", "x", "y", "z"])),
            "elsewhere": collection("other", 4),
        }
    )
    assert found["rows"].tolist() == found["by file"].tolist()
    assert len(set(found["rows"].tolist())) == 3, "two rows of one file are one draw in both"
    assert sharing_groups(found) == [["rows", "by file"], ["elsewhere"]]
