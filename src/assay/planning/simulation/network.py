"""A plan as the simulator reads it: activities in the order of their priority, and what each waits for.

An activity waits for its predecessors and for room; whoever stands earlier in the order takes room first.
That order and the earliest starts are all that the policy keeps of a plan: the rest is decided as the
program runs. Times are hours since the program's first midnight; a person's hours are working hours, a
device's run day and night. Knows no randomness and no program files.
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
    """A predecessor, and the hours that must pass after its end (or after it has begun)."""

    predecessor: int
    lag_h: float = 0.0
    of_start: bool = False


class CapacityReduction(NamedTuple):
    """Capacity that is taken away for a while: a booking, maintenance, a leave. When is a matter of the
    draws."""

    resource: int
    amount: float


class WorkingTime(NamedTuple):
    """Working hours that have passed by each hour of the calendar: a rising line with flats at night."""

    wall_h: Array
    working_h: Array

    def working(self, wall_h: Array) -> Array:
        """Working hours since the beginning."""
        return np.interp(wall_h, self.wall_h, self.working_h)

    def wall(self, working_h: Array) -> Array:
        """The first hour of the calendar by which so much has been worked."""
        after = np.clip(np.searchsorted(self.working_h, working_h, side="left"), 1, len(self.working_h) - 1)
        before_working, after_working = self.working_h[after - 1], self.working_h[after]
        share = (working_h - before_working) / np.maximum(after_working - before_working, 1e-12)
        return self.wall_h[after - 1] + share * (self.wall_h[after] - self.wall_h[after - 1])


@dataclass(frozen=True)
class Network:
    """Activities by priority, the first first; a predecessor always stands before its successor."""

    names: tuple[str, ...]
    predecessors: tuple[tuple[PredecessorLink, ...], ...]
    in_working_hours: tuple[bool, ...]
    """People's work; everything else runs day and night."""
    demand: Float[np.ndarray, "activity resource"]
    not_before_h: Float[np.ndarray, " activity"]
    """A date from outside (data that arrives), or the plan's own start where the policy keeps to its
    calendar."""
    longest_hold_h: Float[np.ndarray, " activity"]
    """After so long it gives way and waits for `gap_h` before it goes on; infinite where no rule limits it."""
    gap_h: float
    restart_h: Float[np.ndarray, " activity"]
    """What it pays, in hours on each of its devices, when it goes on after it gave way."""
    capacity: Float[np.ndarray, " resource"]
    reductions: tuple[CapacityReduction, ...]
    working_time: WorkingTime
    closing: Mapping[int, frozenset[int]]
    """Gate -> the activities that are still done after it has said stop; all others are called off."""
    decision: int
    """The activity whose end is the decision."""

    def successors(self) -> tuple[tuple[PredecessorLink, ...], ...]:
        """The links turned around: for each activity, who waits for it (`predecessor` is the follower here)."""
        found: list[list[PredecessorLink]] = [[] for _ in self.names]
        for index, links in enumerate(self.predecessors):
            for link in links:
                found[link.predecessor].append(link._replace(predecessor=index))
        return tuple(map(tuple, found))

    def is_same(self, other: "Network") -> bool:
        """Whether everything is as in another, so that the same luck comes to the same end."""
        return all(_are_equal(getattr(self, item.name), getattr(other, item.name)) for item in fields(self))

    def index(self, name: str) -> int:
        """Where an activity stands in the order."""
        return self.names.index(name)


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, WorkingTime):
        return all(map(np.array_equal, one, other))
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


def working_time(*, working_days: Sequence[bool], first_h: float, last_h: float) -> WorkingTime:
    """Working hours from `first_h` to `last_h` of each working day (`working_days[day]`, from day 0)."""
    wall, working = [0.0], [0.0]
    for day, is_working in enumerate(working_days):
        if is_working:
            wall += [24.0 * day + first_h, 24.0 * day + last_h]
            working += [working[-1], working[-1] + last_h - first_h]
    return WorkingTime(np.array(wall), np.array(working))
