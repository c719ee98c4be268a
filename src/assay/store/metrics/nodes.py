"""Summaries of a metric's points by ranges of steps: what columns of a plot and stored levels consist of.

A node summarizes the points whose steps lie in one aligned range [k * 2^level, (k + 1) * 2^level). Nodes of any
points of a range merge into the node of all of them, so a wide range is exact without its points.
"""

import numpy as np
import numpy.typing as npt

Nodes = npt.NDArray[np.void]
"""Nodes of type `NODE`, sorted by `last_step`; of equal steps, the one that was logged later stands behind."""

NODE = np.dtype(
    [
        ("last_step", "<i8"),  # of the last finite point; of the last point if none is finite
        ("num_points", "<u4"),
        ("num_nan", "<u4"),
        ("num_high", "<u4"),  # of +infinity
        ("num_low", "<u4"),  # of -infinity
        ("minimum", "<f8"),  # of finite points; NaN if there are none, as in the next two
        ("maximum", "<f8"),
        ("last", "<f8"),  # the finite value at the largest step
    ]
)


def no_nodes() -> Nodes:
    """Return an empty array of nodes."""
    return np.zeros(0, NODE)


def point_nodes(steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> Nodes:
    """Return a node for each point, in the order of the points, which may be unsorted."""
    nodes = np.empty(len(steps), NODE)
    finite = values
    is_finite = np.isfinite(values)
    nodes["num_nan"] = nodes["num_high"] = nodes["num_low"] = 0
    if not is_finite.all():
        finite = np.where(is_finite, values, np.nan)
        nodes["num_nan"] = np.isnan(values)
        nodes["num_high"] = values == np.inf
        nodes["num_low"] = values == -np.inf
    nodes["last_step"], nodes["num_points"] = steps, 1
    nodes["minimum"] = nodes["maximum"] = nodes["last"] = finite
    return nodes


def sorted_nodes(nodes: Nodes) -> Nodes:
    """Return the nodes sorted by their last step; nodes of equal steps keep their order."""
    steps = nodes["last_step"]
    return nodes if np.all(steps[1:] >= steps[:-1]) else nodes[np.argsort(steps, kind="stable")]


def merged_nodes(nodes: Nodes, keys: npt.NDArray[np.int64]) -> Nodes:
    """Merge neighbours with equal keys. Keys never fall; within a key, nodes are sorted as `Nodes` says."""
    if not len(nodes):
        return nodes
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    if len(starts) == len(nodes):
        return nodes
    merged = np.empty(len(starts), NODE)
    for name in ("num_points", "num_nan", "num_high", "num_low"):
        merged[name] = np.add.reduceat(nodes[name], starts)
    merged["minimum"] = np.fmin.reduceat(nodes["minimum"], starts)
    merged["maximum"] = np.fmax.reduceat(nodes["maximum"], starts)
    ends = np.r_[starts[1:], len(nodes)] - 1
    last_finite = np.where(np.isnan(nodes["last"]), -1, np.arange(len(nodes)))
    last = np.maximum.reduceat(last_finite, starts)
    last = np.where(last < 0, ends, last)
    merged["last_step"], merged["last"] = nodes["last_step"][last], nodes["last"][last]
    return merged


def nodes_of_level(nodes: Nodes, level: int) -> Nodes:
    """Merge nodes of any finer levels into nodes of this level."""
    nodes = sorted_nodes(nodes)
    return merged_nodes(nodes, nodes["last_step"] >> level)
