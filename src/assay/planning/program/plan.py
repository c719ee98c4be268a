"""A schedule of a program: when everything runs, in which mode, and whether it is proved optimal."""

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.config import FrozenConfig
from assay.records.record import Record

Hold = tuple[NonNegativeInt, PositiveInt]
"""Hours since the program's start: from, until."""


class PlannedRun(FrozenConfig):
    """A run of an activity."""

    devices: PositiveInt
    holds: tuple[Hold, ...]
    """Intervals of hours in which it holds devices."""


class Planned(FrozenConfig):
    """A scheduled activity or gate."""

    name: str
    mode: NonNegativeInt
    """Index of the alternative."""

    start_h: NonNegativeInt
    end_h: PositiveInt

    people: dict[str, float] = Field(default_factory=dict)
    """Full-time equivalents."""

    runs: tuple[PlannedRun, ...] = ()

    def device_hours(self) -> int:
        """Return the device-hours of its runs."""
        return sum(run.devices * (end - start) for run in self.runs for start, end in run.holds)


def held_devices(runs: Iterable[PlannedRun]) -> list[tuple[int, int, int]]:
    """Return (from, until, devices) for each interval in which these runs hold a constant number of devices."""
    changes: Counter[int] = Counter()
    for run in runs:
        for begin, end in run.holds:
            changes[begin] += run.devices
            changes[end] -= run.devices
    hours = sorted(hour for hour, change in changes.items() if change)
    levels = accumulate(changes[hour] for hour in hours[:-1])
    return [(*span, held) for span, held in zip(pairwise(hours), levels, strict=True) if held]


def peak_devices(runs: Iterable[PlannedRun]) -> int:
    """Return the maximal number of devices that these runs hold in any hour."""
    return max((held for _, _, held in held_devices(runs)), default=0)


class ObjectiveResult(FrozenConfig):
    """An objective, in lexicographic order."""

    name: Literal["decision_h", "device_hours", "peak_devices", "late_h", "changes_h", "start_h"]
    value: float
    bound: float
    """Lower bound given the earlier objectives."""

    proved: bool
    """Value equals bound."""

    solve_s: NonNegativeFloat = 0.0


class Plan(Record):
    """An optimal schedule."""

    program: str
    program_sha256: str

    decision_h: PositiveInt

    device_hours: NonNegativeInt
    peak_devices: NonNegativeInt
    """In any hour."""

    items: tuple[Planned, ...]
    """By start."""

    objective_results: tuple[ObjectiveResult, ...]

    def item(self, name: str) -> Planned:
        """Return the item of that name. Raises `KeyError` if the plan does not have it."""
        for item in self.items:
            if item.name == name:
                return item
        raise KeyError(name)

    def decision_day(self) -> int:
        return -(-self.decision_h // 24)  # as Calendar.day_of

    def is_proved(self) -> bool:
        return all(result.proved for result in self.objective_results)
