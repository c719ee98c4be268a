"""Rows that were kept together by the split are one draw: rows of one file are wrong together.

    predictions.parquet, column `split_cluster` --> clusters[row] --> variance and quantile of a sum over rows

Each metric is, nearly, a sum of its rows' influences, so that one rule serves all: they are added within a
cluster, and clusters are independent (Liang & Zeger 1986; for AUCs Obuchowski 1997). Student's quantile has one
degree of freedom less than there are clusters. The number of clusters stands in the method's name.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int64, Shaped

from assay.data.dataset.split import key_hashes
from assay.evaluation.evidence.interval import CONFIDENCE

CLUSTER = "split_cluster"
"""The column of predictions with the hash of each row's key; absent where rows were split without one."""

Clusters = Int64[np.ndarray, "row"]


class Spread(NamedTuple):
    """How far a sum of influences may lie from its expectation."""

    variance: float
    quantile: float
    """Standard errors that a 95% interval reaches each way."""
    num_clusters: int

    @property
    def reach(self) -> float:
        """Half the width of the interval."""
        return self.quantile * float(np.sqrt(self.variance))


def with_clusters(table: pa.Table, key: str | None, *, kept: bool) -> pa.Table:
    """Predictions with the clusters of their rows, whose key stays where it is `kept`."""
    if key is None or key not in table.column_names:
        return table
    found = table.append_column(CLUSTER, pa.array(key_hashes(table[key]), pa.uint64()))
    return found if kept else found.drop_columns(key)


def same_clusters(table: Any, other: Any) -> Any:
    """Predictions with the clusters of others of the same rows, where an older assay wrote these without."""
    if CLUSTER in table.column_names or CLUSTER not in other.column_names or len(table) != len(other):
        return table
    return table.append_column(CLUSTER, other[CLUSTER])


def clusters_of(table: Any) -> Clusters | None:
    """The cluster of each row of a table of predictions; None where each row is one of its own."""
    if CLUSTER not in table.column_names:
        return None
    keys, clusters = np.unique(table[CLUSTER].to_numpy(), return_inverse=True)
    return None if len(keys) == len(clusters) else clusters.astype(np.int64)


def clustered(influences: Float64[np.ndarray, "row"], clusters: Clusters) -> Spread | None:
    """The spread of a sum of influences that is expected to be 0; None where one cluster holds all rows."""
    from scipy.stats import t  # here, for ranks import this module, too

    if (count := len(np.unique(clusters))) < 2:
        return None
    variance = float(clustered_variance(influences, clusters))
    return Spread(variance, float(t.ppf(0.5 + CONFIDENCE / 2, count - 1)), count)


def cluster_sums(
    values: Float64[np.ndarray, "*leading item"], clusters: Shaped[np.ndarray, "item"] | None
) -> Float64[np.ndarray, "*leading cluster"]:
    """Sums of [..., item] over the items of each cluster: [..., cluster]; unchanged without clusters."""
    if clusters is None:
        return values
    assert clusters.shape == values.shape[-1:], f"{clusters.shape} clusters for {values.shape[-1]} items"
    order = np.argsort(clusters, kind="stable")
    starts = np.flatnonzero(np.append(True, clusters[order][1:] != clusters[order][:-1]))
    return np.add.reduceat(values[..., order], starts, axis=-1)


def clustered_variance(
    deviations: Float64[np.ndarray, "*leading item"], clusters: Shaped[np.ndarray, "item"] | None
) -> Float64[np.ndarray, "*leading"]:
    """Variance of the sum of [..., item] weighted deviations, clusters being the independent draws; infinite
    with one."""
    sums = cluster_sums(deviations, clusters)
    count = sums.shape[-1]
    if count < 2:
        return np.full(deviations.shape[:-1], np.inf)
    variance: np.ndarray = np.einsum("...c,...c->...", sums, sums) * (count / (count - 1.0))
    return variance


def one_cluster(method: str) -> str:
    """What is said in place of a method where no interval can be had."""
    return f"{method}: undefined, one cluster"
