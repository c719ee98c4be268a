"""Find items that several benchmarks share, so that a composite does not count their noise twice.

Accuracy and AUC of the same validation rows are two benchmarks over one set of items. If their item variances were
added as independent, 95% intervals would cover 84%. Benchmarks that score the same collection of items therefore get
joint clusters, and `composite.breadth` sums the deviations of a cluster over benchmarks before it squares them.

    benchmark --> (collection, item ids, clusters) --> joint clusters: equal numbers are one draw
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from assay.base.shapes import Int64, Shaped


class ItemCollection(NamedTuple):
    """The items that a benchmark scored."""

    name: str
    """Item ids mean the same in all benchmarks with this name."""
    item_ids: Sequence[str]
    clusters: Shaped[np.ndarray, "item"]
    cluster_names: Sequence[str] | None = None
    """Names that mean the same in all benchmarks of this collection, so that rows of one file form one cluster even if
    the benchmarks score different rows of it. None if cluster names are local to the benchmark."""


def joint_clusters(collections: Mapping[str, ItemCollection]) -> dict[str, Int64[np.ndarray, "_"]]:
    """Return each benchmark's clusters, numbered jointly: items that share an id or a cluster are in one cluster."""
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
    return {name: labels[nodes].astype(np.int64) for name, nodes in zip(collections, cluster_nodes, strict=True)}


def sharing_groups(clusters_of: Mapping[str, Int64[np.ndarray, "_"]]) -> list[list[str]]:
    """Group benchmarks that have clusters in common, directly or through others; in the order given."""
    groups: list[list[str]] = []
    for name, numbers in clusters_of.items():
        touched = [group for group in groups if any(np.isin(numbers, clusters_of[other]).any() for other in group)]
        groups = [group for group in groups if group not in touched]
        groups.append([*(other for group in touched for other in group), name])
    return groups
