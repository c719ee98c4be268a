"""Device time of jobs, eval runs, batches and sessions by day (UTC), summed from the charges in their logs.

    charged/2026-11-26/PROJECT/ID    marker, written before a charge of that day

A job is charged per attempt, eval runs and batches per chunk, a session per lease. A charge that spans midnight is
split between the days in proportion. The sum over days equals the held time in the ledger.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from assay.base.errors import StoreError
from assay.records.fine_tuning_job import JobCharged
from assay.records.phase import Phase
from assay.records.run import PhaseSeconds
from assay.records.session import SessionCharged
from assay.serving.repository import ResourceRepository
from assay.store.home import Home
from assay.store.ledger.writer import marking
from assay.store.objects import ObjectStore

if TYPE_CHECKING:
    from assay.store.ledger.ledger import Ledger


class HeldTime(Protocol):
    """An interval during which devices were held."""

    @property
    def began_s(self) -> float: ...

    @property
    def ended_s(self) -> float: ...

    @property
    def device_s(self) -> float: ...


class ChargedResource(Protocol):
    """A resource with charges."""

    @property
    def charges(self) -> Sequence[HeldTime]: ...

    @property
    def has_final_cost(self) -> bool:
        """Whether no further charge can come."""
        ...


class ChargedResources:
    """All resources that projects are charged for: jobs, eval runs, batches and sessions."""

    def __init__(self, *repositories: ResourceRepository[Any, Any]) -> None:
        """`repositories`: of `ChargedResource` states in one store."""
        self._repositories = {str(repository.id_kind): repository for repository in repositories}
        self.store: ObjectStore = repositories[0].store

    def find(self, resource_id: str, project: str) -> ChargedResource | None:
        """Return the state of a resource if it belongs to `project`."""
        return self.state(resource_id) if self.project(resource_id) == project else None

    def state(self, resource_id: str) -> ChargedResource | None:
        """Return the state of a resource; None if there is none with this id."""
        repository = self._repositories.get(resource_id.partition("-")[0])
        found: ChargedResource | None = None if repository is None else repository.state(resource_id)
        return found

    def project(self, resource_id: str) -> str:
        """Return the project of a resource; empty if there is none with this id."""
        repository = self._repositories.get(resource_id.partition("-")[0])
        state = None if repository is None else repository.state(resource_id)
        return "" if state is None else str(state.created.project)


class DayCost(NamedTuple):
    """Cost of one resource on one day."""

    project: str
    resource_id: str
    device_s: float
    training_s: float
    """Share of `device_s` that was training."""


def day_of(at_s: float) -> date:
    """Return the UTC day of a Unix time."""
    return datetime.fromtimestamp(at_s, UTC).date()


def begin_s(day: date) -> float:
    """Return the Unix time at which a UTC day begins."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def days_between(first: date, end: date) -> Iterator[date]:
    """Yield the days from `first` up to, not including, `end`."""
    for number in range((end - first).days):
        yield first + timedelta(days=number)


def month_of(at_s: float) -> tuple[date, date]:
    """Return the first day of the month of `at_s`, and of the next month."""
    first = day_of(at_s).replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)


def by_day(held: HeldTime) -> dict[date, float]:
    """Split held device-seconds by day; the values sum to `held.device_s`."""
    first, last = day_of(held.began_s), day_of(held.ended_s)
    if first == last or held.ended_s <= held.began_s:
        return {first: held.device_s}
    found: dict[date, float] = {}
    for day in days_between(first, last + timedelta(days=1)):
        from_s, to_s = max(held.began_s, begin_s(day)), min(held.ended_s, begin_s(day + timedelta(days=1)))
        if to_s > from_s:
            found[day] = held.device_s * (to_s - from_s) / (held.ended_s - held.began_s)
    return found


def spent_between(helds: Iterable[HeldTime], first: date, end: date) -> float:
    """Return the device-seconds from `first` up to, not including, `end`."""
    return sum(device_s for held in helds for day, device_s in by_day(held).items() if first <= day < end)


def mark_charged(store: ObjectStore, project: str, resource_id: str, held: HeldTime) -> None:
    """Write the day markers of a charge; call it before the charge is logged."""
    for day in by_day(held) if held.device_s else ():
        key = f"charged/{day}/{project}/{resource_id}"
        if not store.exists(key):
            store.put(key, b"")


def charged_on(store: ObjectStore, day: date, project: str | None = None) -> list[tuple[str, str]]:
    """Return (project, id) of all resources that may have a charge on `day`, sorted."""
    prefix = f"charged/{day}/" if project is None else f"charged/{day}/{project}/"
    keys = (item.key.split("/") for item in store.list(prefix))
    return sorted((parts[-2], parts[-1]) for parts in keys)


def ever_charged(store: ObjectStore) -> list[tuple[str, str]]:
    """Return (project, id) of all resources that may have a charge."""
    return sorted({(parts[-2], parts[-1]) for parts in (key.key.split("/") for key in store.list("charged/"))})


def costs_of_day(resources: ChargedResources, day: date) -> list[DayCost]:
    """Return the cost of each resource on `day`."""
    found = []
    for project, resource_id in charged_on(resources.store, day):
        state = resources.find(resource_id, project)
        if state is not None:
            trained = [charge for charge in state.charges if _is_training(charge)]
            device_s, training_s = (
                spent_between(helds, day, day + timedelta(days=1)) for helds in (state.charges, trained)
            )
            found.append(DayCost(project, resource_id, device_s, training_s))
    return found


def _is_training(charge: HeldTime) -> bool:
    """Return whether devices trained; a session's samples are part of its training."""
    return isinstance(charge, SessionCharged) or (isinstance(charge, JobCharged) and charge.attempt > 0)


class ProjectSpend:
    """Monthly device-seconds of projects."""

    def __init__(self, resources: ChargedResources) -> None:
        self._resources = resources
        self._over: dict[tuple[str, date], float] = {}
        """(id, month) -> device-seconds, cached for resources whose cost is final."""

    def of_month(self, project: str, now_s: float, live: Mapping[str, Iterable[HeldTime]]) -> float:
        """Return a project's device-seconds in the month of `now_s`. `live`: job -> held time of running jobs."""
        first, end = month_of(now_s)
        total = sum(spent_between(helds, first, end) for helds in live.values())
        return total + sum(
            self._of_resource(resource_id, project, first, end)
            for resource_id in self._charged_in(project, first, min(end, day_of(now_s) + timedelta(days=1)))
            if resource_id not in live
        )

    def _charged_in(self, project: str, first: date, end: date) -> set[str]:
        days = days_between(first, end)
        return {resource_id for day in days for _, resource_id in charged_on(self._resources.store, day, project)}

    def _of_resource(self, resource_id: str, project: str, first: date, end: date) -> float:
        if (resource_id, first) in self._over:
            return self._over[resource_id, first]
        state = self._resources.find(resource_id, project)
        if state is None:
            return 0.0
        spent_s = spent_between(state.charges, first, end)
        if state.has_final_cost:
            self._over[resource_id, first] = spent_s
        return spent_s


def debit(ledger: "Ledger", resource_id: str, charges: Sequence[HeldTime]) -> None:
    """Record the device time of one eval run, batch or session in the ledger: of a session by lease, as its attempts
    are."""
    seconds: dict[int, dict[Phase, float]] = defaultdict(lambda: defaultdict(float))
    for charge in charges:
        if isinstance(charge, SessionCharged):
            seconds[charge.lease] = {"compute": charge.device_s - charge.redone_s, "lost": charge.redone_s}
        else:
            seconds[0]["evaluation"] += charge.device_s
    for attempt, phases in seconds.items():
        if held_s := sum(phases.values()):
            held = PhaseSeconds(run_id=resource_id, attempt=attempt, rank=0, held_s=held_s, seconds=phases)
            ledger.record_phase_seconds(held)


def debit_at_once(home: Home, resource_id: str, charges: Sequence[HeldTime]) -> None:
    """Record it in the ledger of a home; if the ledger is unavailable, it catches up when it is opened next."""
    with suppress(StoreError), marking(home, resource_id), home.open_ledger() as ledger:
        debit(ledger, resource_id, charges)


def debit_all(ledger: "Ledger", resources: ChargedResources) -> None:
    """Record the device time of all charged resources in the ledger, deleted ones included."""
    for project, resource_id in ever_charged(resources.store):
        if (state := resources.find(resource_id, project)) is not None:
            debit(ledger, resource_id, state.charges)
