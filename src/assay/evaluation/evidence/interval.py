"""How sure an interval is, how wide that makes it under a normal law, and symmetric ones as records.

Rows that the split kept together are one draw: those of one file are wrong together. Each metric is, nearly,
a sum of its rows' influences, so that one rule serves all: they are added within a cluster, and clusters are
independent (Liang & Zeger 1986; for AUCs Obuchowski 1997). Student's quantile has one degree of freedom less
than there are clusters, whose number stands in the method's name.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from assay.records.evaluation import Estimate

CONFIDENCE = 0.95
"""The confidence of every interval that names no other."""

ONE_SIDED = 0.95
"""Confidence of guardrails and safety bounds. All must pass, so they share no error (an intersection-union
test)."""


Clusters = Int64[np.ndarray, "row"]
"""Rows of one number are one draw."""


def normal_quantile(confidence: float = CONFIDENCE) -> float:
    """Half-width of a two-sided interval in standard errors: 1.96 for 0.95."""
    from scipy.special import ndtri  # here, for ranks import this module, too

    return float(ndtri(0.5 + confidence / 2.0))


def symmetric(
    value: float,
    reach: float,
    *,
    method: str,
    confidence: float = CONFIDENCE,
    lowest: float = -math.inf,
    highest: float = math.inf,
) -> Estimate:
    """`value` with an interval that reaches as far on either side, within what is possible."""
    low, high = max(value - reach, lowest), min(value + reach, highest)
    return Estimate(value=value, low=low, high=high, confidence=confidence, method=method)


class ClusteredError(NamedTuple):
    """How far a sum of influences may lie from its expectation."""

    variance: float
    quantile: float
    """Standard errors that a 95% interval reaches each way."""
    num_clusters: int

    @property
    def reach(self) -> float:
        """Half the width of the interval."""
        return self.quantile * float(np.sqrt(self.variance))


def clustered(influences: Float64[np.ndarray, "row"], clusters: Clusters) -> ClusteredError | None:
    """The error of a sum of influences that is expected to be 0; None where one cluster holds all rows."""
    from scipy.stats import t  # here, for ranks import this module, too

    if (count := len(np.unique(clusters))) < 2:
        return None
    variance = float(clustered_variance(influences, clusters))
    return ClusteredError(variance, float(t.ppf(0.5 + CONFIDENCE / 2, count - 1)), count)


def one_cluster(method: str) -> str:
    """What is said in place of a method where no interval can be had."""
    return f"{method}: undefined, one cluster"


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
