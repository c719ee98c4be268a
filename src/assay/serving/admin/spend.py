"""What jobs, runs of evals and batches cost, in the time for which they held devices, by day (UTC): the charges
in their logs, added up.

    charged/2026-11-26/PROJECT/ID    that something may have been charged on a day: put before the charge

A job is charged for its run's attempts, the others for each chunk of what they found. What lasts over midnight
is charged to both days, by how much of it lies in each. So the sum over days is the sum over attempts and
chunks, which is the held time of the ledger.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from assay.records.fine_tuning_job import JobCharged
from assay.serving.job_repository import Shelf
from assay.store.objects import ObjectStore


class HeldTime(Protocol):
    """Devices that were held from one moment to another."""

    @property
    def began_s(self) -> float: ...

    @property
    def ended_s(self) -> float: ...

    @property
    def device_s(self) -> float: ...


class ChargedState(Protocol):
    """Something that costs, as its entries say."""

    @property
    def charges(self) -> Sequence[HeldTime]: ...

    @property
    def is_settled(self) -> bool:
        """Whether it costs nothing more."""
        ...


class ChargedThings:
    """All that projects are charged for: jobs, and what workers do beside them."""

    def __init__(self, *shelves: Shelf[Any, Any]) -> None:
        """`shelves`: of `ChargedState`s, in one store."""
        self._shelves = {str(shelf.id_kind): shelf for shelf in shelves}
        self.store: ObjectStore = shelves[0].store

    def find(self, an_id: str, project: str) -> ChargedState | None:
        """One of them, if it is there and the project's."""
        shelf = self._shelves.get(an_id.partition("-")[0])
        state = None if shelf is None else shelf.state(an_id)
        return state if state is not None and state.created.project == project else None


class DayCost(NamedTuple):
    """What one of them cost on a day."""

    project: str
    thing_id: str
    device_s: float
    training_s: float
    """The part of it that trained."""


def day_of(at_s: float) -> date:
    """The day of a moment, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).date()


def begin_s(day: date) -> float:
    """The first moment of a day."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def days_between(first: date, behind: date) -> Iterator[date]:
    """The days from the first to that before `behind`."""
    for number in range((behind - first).days):
        yield first + timedelta(days=number)


def month_of(at_s: float) -> tuple[date, date]:
    """The first day of a moment's month, and that of the next."""
    first = day_of(at_s).replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)


def by_day(held: HeldTime) -> dict[date, float]:
    """Day -> device-seconds; they sum to those that were held."""
    first, last = day_of(held.began_s), day_of(held.ended_s)
    if first == last or held.ended_s <= held.began_s:
        return {first: held.device_s}
    found: dict[date, float] = {}
    for day in days_between(first, last + timedelta(days=1)):
        from_s, to_s = max(held.began_s, begin_s(day)), min(held.ended_s, begin_s(day + timedelta(days=1)))
        if to_s > from_s:
            found[day] = held.device_s * (to_s - from_s) / (held.ended_s - held.began_s)
    return found


def spent_between(helds: Iterable[HeldTime], first: date, behind: date) -> float:
    """The device-seconds of the days from `first` to that before `behind`."""
    return sum(device_s for held in helds for day, device_s in by_day(held).items() if first <= day < behind)


def mark_charged(store: ObjectStore, project: str, thing_id: str, held: HeldTime) -> None:
    """Say that something is about to be charged."""
    for day in by_day(held) if held.device_s else ():
        key = f"charged/{day}/{project}/{thing_id}"
        if not store.exists(key):
            store.put(key, b"")


def charged_on(store: ObjectStore, day: date, project: str | None = None) -> list[tuple[str, str]]:
    """Project and id of each that may have been charged on a day, in order."""
    prefix = f"charged/{day}/" if project is None else f"charged/{day}/{project}/"
    keys = (item.key.split("/") for item in store.list(prefix))
    return sorted((parts[-2], parts[-1]) for parts in keys)


def ever_charged(store: ObjectStore) -> list[tuple[str, str]]:
    """Likewise, on any day."""
    return sorted({(parts[-2], parts[-1]) for parts in (key.key.split("/") for key in store.list("charged/"))})


def costs_of_day(things: ChargedThings, day: date) -> list[DayCost]:
    """What each was charged on a day."""
    found = []
    for project, thing_id in charged_on(things.store, day):
        state = things.find(thing_id, project)
        if state is not None:
            trained = [charge for charge in state.charges if isinstance(charge, JobCharged) and charge.attempt]
            device_s, training_s = (
                spent_between(helds, day, day + timedelta(days=1)) for helds in (state.charges, trained)
            )
            found.append(DayCost(project, thing_id, device_s, training_s))
    return found


class ProjectSpend:
    """What a project held devices for in a month."""

    def __init__(self, things: ChargedThings) -> None:
        self._things = things
        self._over: dict[tuple[str, date], float] = {}
        """Id and month -> device-seconds, of what is settled."""

    def of_month(self, project: str, now_s: float, live: Mapping[str, Iterable[HeldTime]]) -> float:
        """Device-seconds in the month of `now_s`; `live`: job -> what its run held so far, of those at work."""
        first, behind = month_of(now_s)
        total = sum(spent_between(helds, first, behind) for helds in live.values())
        return total + sum(
            self._of_thing(thing_id, project, first, behind)
            for thing_id in self._charged_in(project, first, min(behind, day_of(now_s) + timedelta(days=1)))
            if thing_id not in live
        )

    def _charged_in(self, project: str, first: date, behind: date) -> set[str]:
        days = days_between(first, behind)
        return {thing_id for day in days for _, thing_id in charged_on(self._things.store, day, project)}

    def _of_thing(self, thing_id: str, project: str, first: date, behind: date) -> float:
        if (thing_id, first) in self._over:
            return self._over[thing_id, first]
        state = self._things.find(thing_id, project)
        if state is None:
            return 0.0
        spent_s = spent_between(state.charges, first, behind)
        if state.is_settled:
            self._over[thing_id, first] = spent_s
        return spent_s
