"""Summaries of a metric's points by ranges of steps: what columns of a plot and stored levels consist of.

A node summarizes the points whose steps lie in one aligned range [k * 2^level, (k + 1) * 2^level). Nodes of any
points of a range merge into the node of all of them, so a wide range is exact without its points.
"""

import numpy as np
import numpy.typing as npt

Nodes = npt.NDArray[np.void]
"""Nodes of type `NODE`, sorted by `last_step`; of equal steps, the one that was logged later stands behind."""

Keys = npt.NDArray[np.int64]

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


def sort_order(keys: Keys, steps: Keys) -> Keys | None:
    """Return the stable order by key, then step; None if both are in this order."""
    is_same, is_lower = keys[1:] == keys[:-1], steps[1:] < steps[:-1]
    if np.any(is_same & is_lower) or np.any(keys[1:] < keys[:-1]):
        return np.lexsort((steps, keys))
    return None


def point_nodes(steps: Keys, values: npt.NDArray[np.float64], keys: Keys) -> tuple[Keys, Nodes]:
    """Return the keys of points in order, and for each the node of the points with this key.

    Points stand in the order in which they were logged.
    """
    order = sort_order(keys, steps)
    if order is not None:
        steps, values, keys = steps[order], values[order], keys[order]
    starts = group_starts(keys)
    if not len(starts):
        return keys, no_nodes()
    nodes = np.zeros(len(starts), NODE)
    nodes["num_points"] = np.diff(np.r_[starts, len(steps)])
    is_finite = np.isfinite(values)
    finite = values
    if not is_finite.all():
        finite = np.where(is_finite, values, np.nan)
        kinds = (("num_nan", np.isnan(values)), ("num_high", values == np.inf), ("num_low", values == -np.inf))
        for name, is_kind in kinds:
            nodes[name] = np.add.reduceat(is_kind, starts, dtype=np.int64)
    nodes["minimum"] = np.fmin.reduceat(finite, starts)
    nodes["maximum"] = np.fmax.reduceat(finite, starts)
    last = _last_finite(finite, starts)
    nodes["last_step"], nodes["last"] = steps[last], finite[last]
    return keys[starts], nodes


def merged_nodes(nodes: Nodes, keys: Keys) -> Nodes:
    """Merge neighbours with equal keys; keys, and last steps within a key, never fall."""
    if not len(nodes):
        return nodes
    starts = group_starts(keys)
    if len(starts) == len(nodes):
        return nodes
    merged = np.empty(len(starts), NODE)
    for name in ("num_points", "num_nan", "num_high", "num_low"):
        merged[name] = np.add.reduceat(nodes[name], starts)
    merged["minimum"] = np.fmin.reduceat(nodes["minimum"], starts)
    merged["maximum"] = np.fmax.reduceat(nodes["maximum"], starts)
    last = _last_finite(nodes["last"], starts)
    merged["last_step"], merged["last"] = nodes["last_step"][last], nodes["last"][last]
    return merged


def nodes_of_level(nodes: Nodes, level: int) -> Nodes:
    """Merge nodes of any finer levels into nodes of this level."""
    steps = nodes["last_step"]
    if np.any(steps[1:] < steps[:-1]):
        nodes = nodes[np.argsort(steps, kind="stable")]
    return merged_nodes(nodes, nodes["last_step"] >> level)


def group_starts(keys: Keys) -> Keys:
    """Return the index of the first of each group of equal neighbours."""
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)


def _last_finite(values: npt.NDArray[np.float64], starts: Keys) -> Keys:
    """Return the index of each group's last value that is not NaN; of its last value if all are."""
    ends: Keys = np.r_[starts[1:], len(values)] - 1
    is_nan = np.isnan(values)
    if not is_nan[ends].any():
        return ends
    last: Keys = np.maximum.reduceat(np.where(is_nan, -1, np.arange(len(values))), starts)
    return np.where(last < 0, ends, last)
