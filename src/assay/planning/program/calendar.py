"""The program's calendar: when people work, and which devices are available.

Times are whole hours since midnight of the program's first day. People work in half days on working days; devices
work around the clock. A moment is written as `2027-01-18`, `week 4`, `week 4 day 2` or `end of week 2`.
"""

import math
import re
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from assay.base.config import FrozenConfig

HOURS_PER_DAY = 24
HOURS_PER_WEEK = 7 * HOURS_PER_DAY

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_PHRASE = re.compile(r"(?P<end>end of )?week (?P<week>[1-9]\d*)(?: day (?P<day>[1-7]))?")


def _as_text(value: Any) -> Any:
    # YAML reads 2027-01-18 as a date of its own.
    return value.isoformat() if isinstance(value, date | datetime) else value


def _known_moment(text: str) -> str:
    if not _PHRASE.fullmatch(text):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise ValueError(
                "not a moment. Write a date (2027-01-18), 'week 4', 'week 4 day 2' or 'end of week 2'"
            ) from error
        if moment.tzinfo is not None:
            raise ValueError("has a time zone; a program's times are local ones. Leave it out")
    return text


Moment = Annotated[str, BeforeValidator(_as_text), AfterValidator(_known_moment)]
"""`week 4` is its first midnight; `week 4 day 2` the midnight before that day; `end of ...` the midnight
after it."""

Share = Annotated[float, Field(gt=0.0, le=1.0)]
"""A share of the whole, 0 to 1."""

Fte = Annotated[float, Field(gt=0.0, multiple_of=0.05)]
"""Full-time equivalents, in twentieths."""


class Calendar(FrozenConfig):
    """The weeks of the program."""

    start: Annotated[date, BeforeValidator(lambda v: date.fromisoformat(v) if isinstance(v, str) else v)]
    """First day of week 1."""

    weeks: Annotated[int, Field(gt=0, le=520)]
    """Last week that the schedule may reach (at most ten years); leave room after the decision."""

    working_days: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri")

    working_hours: tuple[NonNegativeInt, PositiveInt] = (9, 17)
    """Start and end, an even number of hours: half is the morning, half the afternoon."""

    holidays: tuple[date, ...] = ()

    @model_validator(mode="after")
    def _hours_make_two_halves(self) -> Self:
        first, last = self.working_hours
        if not first < last <= HOURS_PER_DAY or (last - first) % 2:
            raise ValueError(f"working_hours {first} to {last}: expected an even number of hours within a day")
        if not self.working_days:
            raise ValueError("working_days is empty: nobody would ever work")
        return self

    def horizon_h(self) -> int:
        """Return the hours that the schedule may use."""
        return self.weeks * HOURS_PER_WEEK

    def hours_per_day(self) -> int:
        """Return the working hours of a full day."""
        first, last = self.working_hours
        return last - first

    def hour_of(self, moment: str) -> int:
        """Return the hours from the program's start to a moment; negative before the start."""
        phrase = _PHRASE.fullmatch(moment)
        if phrase is None:
            since = datetime.fromisoformat(moment) - datetime.combine(self.start, time())
            return round(since / timedelta(hours=1))
        ends, day = phrase["end"] is not None, phrase["day"]
        if day is None:
            return (int(phrase["week"]) - 1 + ends) * HOURS_PER_WEEK
        return (int(phrase["week"]) - 1) * HOURS_PER_WEEK + (int(day) - 1 + ends) * HOURS_PER_DAY

    def date_of(self, hour: int) -> datetime:
        """Return the moment `hour` hours after the start."""
        return datetime.combine(self.start, time()) + timedelta(hours=hour)

    def day_of(self, hour: float, *, begins: bool = False) -> int:
        """Return the day, counted from 1, for something that ends at this hour: midnight belongs to the day
        before. With `begins`, midnight belongs to the day after."""
        days = round(hour / HOURS_PER_DAY, 6)  # a mean of midnights is one
        return math.floor(days) + 1 if begins else max(1, math.ceil(days))

    def day_text(self, hour: float, *, begins: bool = False) -> str:
        """Return the day with its date: `day 37, 9 Feb`, or `1 Jan, before day 1`."""
        day = self.day_of(hour, begins=begins)
        if day > (date.max - self.start).days:
            return f"day {day:.3g}"  # no calendar reaches so far
        on = self.start + timedelta(days=day - 1)
        return f"day {day}, {on.day} {on:%b}" if day > 0 else f"{on.day} {on:%b}, before day 1"

    def date_text(self, hour: float, *, begins: bool = False) -> str:
        """Return the date of `day_text`: `9 Feb`, or `9 Feb 2028` in another year than the start's."""
        day = self.day_of(hour, begins=begins)
        if day > (date.max - self.start).days:
            return f"day {day:.3g}"
        on = self.start + timedelta(days=day - 1)
        return f"{on.day} {on:%b}" if on.year == self.start.year else f"{on.day} {on:%b} {on.year}"

    def deadline_text(self, moment: str) -> str:
        """Return a deadline with its last day: `end of week 8 (day 56, 28 Feb)`."""
        last = self.day_text(self.hour_of(moment))
        return f"{moment} ({last})" if moment.startswith("end of") else f"{moment} (end of {last})"

    def works_on(self, day: date) -> bool:
        """Return whether people work on that day."""
        return WEEKDAYS[day.weekday()] in self.working_days and day not in self.holidays

    def half_days(self) -> tuple[tuple[int, int], ...]:
        """Return every half working day in order: (start hour, end hour)."""
        first, half = self.working_hours[0], self.hours_per_day() // 2
        return tuple(
            (HOURS_PER_DAY * day + begin, HOURS_PER_DAY * day + begin + half)
            for day in range(7 * self.weeks)
            if self.works_on(self.start + timedelta(days=day))
            for begin in (first, first + half)
        )


class Absence(FrozenConfig):
    """An absence."""

    since: Moment
    until: Moment
    fte: Fte | None = None
    """Null: all."""


class Role(FrozenConfig):
    """A role, or one named person."""

    fte: Fte
    """Full-time equivalents."""

    title: str = ""

    part_of: str | None = None
    """A named person's role: work of the person also counts against the role."""

    away: tuple[Absence, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _number_is_fte(cls, value: Any) -> Any:
        return {"fte": value} if isinstance(value, int | float) else value


class Booking(FrozenConfig):
    """A part of the cluster that is unavailable: another project's booking, or maintenance."""

    title: str = ""
    share: Share
    """For all devices."""

    since: Moment
    until: Moment


class FairUse(FrozenConfig):
    """The rule 'No job may hold more than 20% of training capacity for more than 24 hours', with its readings."""

    share: Share = 0.2
    """Share of capacity above which a job's hours are limited."""

    max_hours: PositiveInt = 24
    """Hours for which a job may hold more than the share."""

    of: Literal["total", "available"] = "total"
    """Share of all devices, or of those that no booking holds in that hour."""

    job: Literal["run", "activity"] = "run"
    """One run, or all runs of an activity."""

    segments: Literal["forbidden", "chained"] = "forbidden"
    """`chained`: a run may checkpoint after `max_hours`, pause, and continue after `gap_hours`."""

    gap_hours: PositiveInt = 2


class Capacity(FrozenConfig):
    """The cluster, as this program may use it."""

    devices: PositiveInt
    """For the whole cluster."""

    device: str = "H100"

    fair_use: FairUse | None = None

    bookings: dict[str, Booking] = Field(default_factory=dict)

    def free_devices(self, calendar: Calendar) -> list[int]:
        """Return the devices that no booking holds, for each hour of the horizon."""
        free = [self.devices] * calendar.horizon_h()
        for booking in self.bookings.values():
            held = self.held_by(booking)
            begin, end = calendar.hour_of(booking.since), calendar.hour_of(booking.until)
            for hour in range(max(0, begin), min(len(free), end)):
                free[hour] = max(0, free[hour] - held)
        return free

    def held_by(self, booking: Booking) -> int:
        """Return the devices of a booking, rounded up."""
        return min(self.devices, math.ceil(booking.share * self.devices - 1e-9))
