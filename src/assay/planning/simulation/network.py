"""The activity network of a plan, as the simulator reads it.

An activity waits for its predecessors and for capacity; activities earlier in the order take capacity first.
That order and the earliest starts are all that remains of the plan; everything else is decided during the
simulation. Times are hours since the program's first midnight; people's hours are working hours, devices run
around the clock. Contains no randomness and no program files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.base.shapes import Float

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

DEVICES = 0
"""Index of the accelerators among the resources; people's roles follow."""


class PredecessorLink(NamedTuple):
    """A predecessor, and the hours after its end (or start)."""

    predecessor: int
    lag_h: float = 0.0
    of_start: bool = False


class WorkingTime(NamedTuple):
    """A piecewise linear map from wall hours to working hours."""

    wall_h: Array
    working_h: Array

    def working(self, wall_h: Array) -> Array:
        return np.interp(wall_h, self.wall_h, self.working_h)

    def wall(self, working_h: Array) -> Array:
        """Return the first wall hour at which so many hours have been worked."""
        after = np.clip(np.searchsorted(self.working_h, working_h, side="left"), 1, len(self.working_h) - 1)
        before_working, after_working = self.working_h[after - 1], self.working_h[after]
        share = (working_h - before_working) / np.maximum(after_working - before_working, 1e-12)
        return self.wall_h[after - 1] + share * (self.wall_h[after] - self.wall_h[after - 1])


@dataclass(frozen=True)
class Network:
    """Activities in order of priority; a predecessor always precedes its successors."""

    names: tuple[str, ...]
    predecessors: tuple[tuple[PredecessorLink, ...], ...]
    in_working_hours: tuple[bool, ...]
    """True for people's work; everything else runs around the clock."""
    demand: Float[np.ndarray, "activity resource"]
    not_before_h: Float[np.ndarray, " activity"]
    """An external date, or the planned start if the policy keeps the calendar."""
    longest_hold_h: Float[np.ndarray, " activity"]
    """After this many hours it pauses for `gap_h`; infinite without a rule."""
    gap_h: float
    restart_h: Float[np.ndarray, " activity"]
    """Hours lost on each of its devices when it continues after a pause."""
    capacity: Float[np.ndarray, " resource"]
    reductions: tuple[tuple[int, float], ...]
    """(resource, amount) of each temporary reduction of capacity, such as a booking or an absence; its times are
    sampled."""
    working_time: WorkingTime
    closing: Mapping[int, frozenset[int]]
    """Gate -> the activities that run even after a stop; all others are called off."""
    decision: int
    """The activity whose end is the decision."""

    def successors(self) -> tuple[tuple[PredecessorLink, ...], ...]:
        """Return for each activity the links to its successors, with `predecessor` as the successor's index."""
        found: list[list[PredecessorLink]] = [[] for _ in self.names]
        for index, links in enumerate(self.predecessors):
            for link in links:
                found[link.predecessor].append(link._replace(predecessor=index))
        return tuple(map(tuple, found))

    def is_same(self, other: "Network") -> bool:
        """Return whether everything is equal, so that the same samples give the same result."""
        return all(_are_equal(getattr(self, item.name), getattr(other, item.name)) for item in fields(self))

    def index(self, name: str) -> int:
        return self.names.index(name)


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, WorkingTime):
        return all(map(np.array_equal, one, other))
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


def working_time(*, working_days: Sequence[bool], first_h: float, last_h: float) -> WorkingTime:
    """Return the working time with hours from `first_h` to `last_h` on each working day."""
    wall, working = [0.0], [0.0]
    for day, is_working in enumerate(working_days):
        if is_working:
            wall += [24.0 * day + first_h, 24.0 * day + last_h]
            working += [working[-1], working[-1] + last_h - first_h]
    return WorkingTime(np.array(wall), np.array(working))
