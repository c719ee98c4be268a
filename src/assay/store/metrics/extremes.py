"""A curve in fewer points: of each bucket of neighbours the lowest and the highest. No spike is lost."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
    starts = np.flatnonzero(np.r_[True, buckets[1:] != buckets[:-1]])
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
        num_points = self.num_points + len(points)
        width = self.bucket_points
        while -(-num_points // width) > MAX_BUCKETS:
            width *= 2
        # Full buckets change only if they are joined: a point of a long curve touches only the last bucket.
        num_full = self.num_points // width if width == self.bucket_points else 0
        old_buckets = np.arange(2 * num_full, len(self.extremes)) // 2 * self.bucket_points // width
        new_buckets = np.arange(self.num_points, num_points) // width
        changed = np.concatenate([self.extremes[2 * num_full :], points])
        changed = bucket_extremes(changed, np.r_[old_buckets, new_buckets])
        return Overview(num_points, width, np.concatenate([self.extremes[: 2 * num_full], changed]))


def _first_indices(
    values: npt.NDArray[np.float64], starts: npt.NDArray[np.intp], extreme: np.ufunc
) -> npt.NDArray[np.intp]:
    """For each bucket that begins at `starts`, the place of its first extreme value."""
    sizes = np.diff(np.r_[starts, len(values)])
    found = np.flatnonzero(values == np.repeat(extreme.reduceat(values, starts), sizes))
    owners = np.searchsorted(starts, found, side="right")
    return found[np.r_[True, owners[1:] != owners[:-1]]]
