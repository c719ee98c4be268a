"""Which items of several benchmarks are one draw: a composite must not count their luck as if it were new.

Accuracy and AUC of the same validation rows are two benchmarks and one set of items: whoever adds their item
variances as if they were independent halves the luck of the rows, and intervals of nominally 95% cover 84%.
So benchmarks that score the same collection of items get common names for their draws, and `several.breadth`
sums the deviations of a draw over benchmarks before it squares them.

    benchmark --> (collection, item ids, clusters) --> draws: equal numbers, one draw of luck
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from assay.base.shapes import Int64, Shaped


class ItemCollection(NamedTuple):
    """What a benchmark scored."""

    name: str
    """Benchmarks with the same name here mean the same thing by an item id."""
    item_ids: Sequence[str]
    clusters: Shaped[np.ndarray, "item"]
    cluster_names: Sequence[str] | None = None
    """Where they, too, mean the same in every benchmark of this name: those of other rows of one file share
    the file's luck."""


def joint_clusters(collections: Mapping[str, ItemCollection]) -> dict[str, Int64[np.ndarray, "_"]]:
    """Draws of each benchmark; items that share an id of one collection, or a cluster, are one draw."""
    cluster_nodes, item_nodes = [], []
    known: dict[tuple[str, str], int] = {}
    clusters: dict[tuple[str | None, str, Any], int] = {}
    for benchmark, collection in collections.items():
        names, among = collection.cluster_names, None
        if names is None:
            names, among = collection.clusters.tolist(), benchmark
        keys = [(among, collection.name, name) for name in names]
        cluster_nodes.append(np.array([clusters.setdefault(key, len(clusters)) for key in keys]))
        item_nodes.append(
            np.array([known.setdefault((collection.name, key), len(known)) for key in collection.item_ids])
        )
    ends = (np.concatenate(cluster_nodes), np.concatenate(item_nodes) + len(clusters))
    size = len(clusters) + len(known)
    labels = connected_components(coo_array((np.ones(ends[0].size), ends), (size, size)), directed=False)[1]
    return {
        name: labels[nodes].astype(np.int64) for name, nodes in zip(collections, cluster_nodes, strict=True)
    }


def sharing_groups(clusters_of: Mapping[str, Int64[np.ndarray, "_"]]) -> list[list[str]]:
    """Benchmarks that have draws in common, directly or through others, together; in the order given."""
    groups: list[list[str]] = []
    for name, numbers in clusters_of.items():
        touched = [
            group for group in groups if any(np.isin(numbers, clusters_of[other]).any() for other in group)
        ]
        groups = [group for group in groups if group not in touched]
        groups.append([*(other for group in touched for other in group), name])
    return groups
