"""A curve in fewer points: of each bucket of neighbours the lowest and the highest. No spike is lost."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.store.metrics.nodes import group_starts

Table = npt.NDArray[np.float64]
"""One line per point: step, seconds since the epoch, value."""

STEP, AT_S, VALUE = 0, 1, 2
MAX_BUCKETS = 512


def no_points() -> Table:
    """An empty table."""
    return np.zeros((0, 3))


def bucket_extremes(points: Table, buckets: npt.NDArray[np.int64]) -> Table:
    """Two lines per bucket, in the order of the points: its lowest and its highest (one line may be both).

    `buckets` gives each point's bucket and never falls. A NaN is chosen only where a bucket holds nothing else.
    """
    if not len(points):
        return points
    values = points[:, VALUE]
    starts = group_starts(buckets)
    lowest = _first_indices(np.where(np.isnan(values), np.inf, values), starts, np.minimum)
    highest = _first_indices(np.where(np.isnan(values), -np.inf, values), starts, np.maximum)
    return points[np.sort(np.stack([lowest, highest], axis=1), axis=1).ravel()]


def downsampled(points: Table, max_points: int) -> Table:
    """At most `max_points` (at least 2) of the points, with every bucket's extremes among them."""
    if len(points) <= max_points:
        return points
    buckets = np.arange(len(points)) * max(1, max_points // 2) // len(points)
    return drop_repeated(bucket_extremes(points, buckets))


def drop_repeated(points: Table) -> Table:
    """The points without those that equal their predecessor."""
    if len(points) < 2:
        return points
    bits = np.ascontiguousarray(points).view(np.int64)  # as numbers, NaN would not equal itself
    return points[np.r_[True, np.any(bits[1:] != bits[:-1], axis=1)]]


class Overview(NamedTuple):
    """A growing curve in at most `MAX_BUCKETS` buckets of equally many points, the last perhaps not full."""

    num_points: int = 0
    """That the buckets stand for."""
    bucket_points: int = 1
    """Points per bucket: a power of two."""
    extremes: Table = no_points()
    """Two lines per bucket."""

    def extended(self, points: Table) -> "Overview":
        """The overview of the curve that goes on with `points`."""
        return extended_overviews([self], [points])[0]


def extended_overviews(overviews: Sequence[Overview], new: Sequence[Table]) -> list[Overview]:
    """The overviews of curves that go on with `new`; many cost little more than one."""
    widths, full_buckets, changed, buckets, ends = [], [], [], [], [0]
    for overview, points in zip(overviews, new, strict=True):
        num_points = overview.num_points + len(points)
        width = overview.bucket_points
        while -(-num_points // width) > MAX_BUCKETS:
            width *= 2
        # Full buckets change only if they are joined: a point of a long curve touches only the last bucket.
        num_full = overview.num_points // width if width == overview.bucket_points else 0
        first = ends[-1] - num_full
        old_buckets = np.arange(2 * num_full, len(overview.extremes)) // 2 * overview.bucket_points // width
        buckets += [first + old_buckets, first + np.arange(overview.num_points, num_points) // width]
        changed += [overview.extremes[2 * num_full :], points]
        widths.append(width)
        full_buckets.append(overview.extremes[: 2 * num_full])
        ends.append(first + -(-num_points // width))
    extremes = bucket_extremes(np.concatenate(changed), np.concatenate(buckets))
    return [
        Overview(overview.num_points + len(points), width, np.concatenate([full, extremes[2 * start : 2 * end]]))
        for overview, points, width, full, start, end in zip(
            overviews, new, widths, full_buckets, ends, ends[1:], strict=False
        )
    ]


def _first_indices(
    values: npt.NDArray[np.float64], starts: npt.NDArray[np.intp], extreme: np.ufunc
) -> npt.NDArray[np.intp]:
    """For each bucket that begins at `starts`, the place of its first extreme value."""
    sizes = np.diff(starts, append=len(values))
    found = np.flatnonzero(values == np.repeat(extreme.reduceat(values, starts), sizes))
    owners = np.searchsorted(starts, found, side="right")
    return found[group_starts(owners)]
