"""Device-hours and money of all runs by project, program, person or day (UTC).

Sums of the same ledger rows as `assay runs goodput`: without a window, the totals are equal. An attempt that spans
midnight is split between the days in proportion, as in the API's costs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from itertools import chain
from typing import Literal, NamedTuple

from assay.base.errors import ConfigError
from assay.planning.actuals import run_ids_by_activity
from assay.planning.program.file import read_program
from assay.records.fine_tuning_job import JobCharged
from assay.records.goodput import USEFUL, Interruption
from assay.records.phase import Phase
from assay.records.run import AT_WORK, Attempt, PhaseSeconds
from assay.reporting.views.runs.run_list import current_summaries
from assay.reporting.views.view import View
from assay.serving.admin.spend import ChargedResources, HeldTime, by_day, day_of
from assay.store.followed import followed_programs
from assay.store.home import Home
from assay.store.ledger.goodput import interruptions_of
from assay.store.ledger.ledger import Ledger
from assay.store.settings import Settings

Grouping = Literal["project", "program", "person", "day"]
LOST: tuple[Phase, ...] = ("lost", "late", "stalled")
"""Phases of work that was rolled back or came too late, and of hangs."""
_Kind = Literal["held", "useful", "lost", "evaluation", "waiting"]


class CostLine(View):
    """Device-hours of one project, program, person or day."""

    name: str
    """Empty for runs without one."""
    num_runs: int
    """With device time in the window."""
    held_device_hours: float
    """Training; the sum of useful, lost and other."""
    useful_device_hours: float
    """Steps that were kept."""
    lost_device_hours: float
    """Steps that were rolled back or came too late, and hangs."""
    other_device_hours: float
    """Startup, commits and idle time."""
    evaluation_device_hours: float
    """Apart from training."""
    waiting_device_hours: float
    """Between an interruption and the next attempt; not held, so it costs nothing."""
    cost: float | None
    """Price of training; None if the price of a device is unknown."""
    evaluation_cost: float | None
    """Price of evaluation, at the price of the device that trained last."""
    currency: str
    """Currency of both; empty without prices."""


class InterruptionCost(View):
    """An early end of an attempt."""

    run_id: str
    attempt: int
    at_s: float
    """The attempt's end."""
    why: str
    """The failure's first line."""
    device_hours: float
    """Lost, stalled and restarting."""
    cost: float | None
    """Price of these device-hours; None if the price of a device is unknown."""


class CostReport(View):
    """Costs of a window."""

    by: Grouping
    """What each line is."""
    since: str | None
    """First day; None: from the beginning."""
    until: str | None
    """Last day; None: until now."""
    lines: tuple[CostLine, ...]
    """Days in order; others by training time."""
    total: CostLine
    """Sum of the lines."""
    interruptions: tuple[InterruptionCost, ...]
    """Dearest first."""
    num_open_attempts: int
    """Attempts without a recorded end; their time is not in the sums yet."""
    open_device_hours: float = 0.0
    """Device-hours of those attempts, if their runs are at work: until the last sign of life."""


class CostOwners(NamedTuple):
    """To what a run belongs, by its id."""

    project: Callable[[str], str]
    program: Callable[[str], str]
    charges: Callable[[str], Sequence[HeldTime]]
    """When a session, the evaluations of a job, an eval run or a batch held devices."""


def owners_in(home: Home, ledger: Ledger, charged: ChargedResources, *, by: Grouping) -> CostOwners:
    """Return what the runs of a home belong to: the project of their job, and the first known program that has an
    activity for them. Programs are read only if they are grouped by."""
    programs: dict[str, str] = {}
    for followed in followed_programs(home) if by == "program" else ():
        program = read_program(followed.file).program
        for run_ids in run_ids_by_activity(program, ledger).values():
            programs.update((run_id, program.name) for run_id in run_ids if run_id not in programs)

    def charges(run_id: str) -> Sequence[HeldTime]:
        state = charged.state(run_id)
        held = () if state is None else state.charges
        return [charge for charge in held if not (isinstance(charge, JobCharged) and charge.attempt)]

    return CostOwners(charged.project, lambda run_id: programs.get(run_id, ""), charges)


def utc_day(name: str, text: str | None) -> date | None:
    """Return the day in the option or filter `name`; None if it is empty. Raises `ConfigError` for another text."""
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise ConfigError(f"{name}={text}: expected a day such as 2026-11-28.") from None


class _Charge(NamedTuple):
    """Device-seconds of a run between two moments."""

    run_id: str
    person: str
    began_s: float
    ended_s: float
    price: float | None
    """Price of a device-hour."""
    seconds: Mapping[_Kind, float]
    device_s: float = 1.0
    """`by_day` splits this: the values are shares."""


class _Run(NamedTuple):
    """What the ledger has of a run."""

    run_id: str
    attempts: Sequence[Attempt]
    seconds: Sequence[PhaseSeconds]
    prices: Mapping[int, float | None]
    """By attempt."""

    def last_price(self) -> float | None:
        return self.prices[max(self.prices)] if self.prices else None


def cost_report(
    ledger: Ledger,
    settings: Settings,
    owners: CostOwners,
    *,
    by: Grouping,
    since: date | None = None,
    until: date | None = None,
) -> CostReport:
    """Return the costs of all runs except drills."""

    def is_within(day: date) -> bool:
        return (since is None or day >= since) and (until is None or day <= until)

    charges: list[_Charge] = []
    interruptions: list[InterruptionCost] = []
    num_open_attempts, open_s = 0, 0.0
    summaries = current_summaries(ledger, is_unfinished=True)
    seen_s = {item.run.run_id: item.last_seen_s or 0.0 for item in summaries if item.status in AT_WORK}
    finished_by = ledger.finishing_attempts()
    for run in _runs(ledger, settings):
        ended = [attempt for attempt in run.attempts if attempt.ended_s is not None]
        num_open_attempts += len(run.attempts) - len(ended)
        if run.run_id in seen_s:
            held = (_open(item, seen_s[run.run_id]) for item in run.attempts if item.ended_s is None)
            open_s += sum(device_s for item in held for day, device_s in by_day(item).items() if is_within(day))
        found = interruptions_of(ended, run.seconds, finished_by=finished_by.get(run.run_id))
        charges += [*_training(run, owners), *_evaluation(run, owners), *(_waiting(item, ended) for item in found)]
        prices = run.prices if settings.device_hour_prices else {}
        interruptions += [
            _interruption(item, prices.get(item.attempt)) for item in found if is_within(day_of(item.at_s))
        ]
    names: Mapping[Grouping, Callable[[_Charge], str]] = {
        "project": lambda charge: owners.project(charge.run_id),
        "program": lambda charge: owners.program(charge.run_id),
        "person": lambda charge: charge.person,
        "day": lambda charge: "",
    }
    grouped: dict[str, list[tuple[_Charge, float]]] = {}
    for charge in charges:
        name = names[by](charge)
        for day, share in by_day(charge).items():
            if is_within(day):
                grouped.setdefault(day.isoformat() if by == "day" else name, []).append((charge, share))
    lines = [_line(name, parts, settings) for name, parts in grouped.items()]
    return CostReport(
        by=by,
        since=None if since is None else since.isoformat(),
        until=None if until is None else until.isoformat(),
        lines=tuple(sorted(lines, key=lambda line: line.name if by == "day" else -line.held_device_hours)),
        total=_line("all", list(chain.from_iterable(grouped.values())), settings),
        interruptions=tuple(sorted(interruptions, key=lambda item: -item.device_hours)),
        num_open_attempts=num_open_attempts,
        open_device_hours=open_s / 3600,
    )


def _runs(ledger: Ledger, settings: Settings) -> Iterator[_Run]:
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    seconds: dict[str, list[PhaseSeconds]] = defaultdict(list)
    for attempt in ledger.attempts():
        attempts[attempt.run_id].append(attempt)
    for part in ledger.phase_seconds():
        seconds[part.run_id].append(part)
    drills, planned = {run.run_id for run in ledger.runs() if run.is_drill}, settings.planned_price()
    for run_id in sorted({*attempts, *seconds} - drills):
        prices = {attempt.attempt: settings.price_of(attempt) for attempt in attempts[run_id]}
        if not prices and planned is not None:  # a session, an eval run or a batch, whose devices are not on record
            prices = {1: planned.amount}
        yield _Run(run_id, attempts[run_id], seconds[run_id], prices)


def _training(run: _Run, owners: CostOwners) -> Iterator[_Charge]:
    """Yield the attempts of a run, or when a session of the Tinker API, which has none, was charged."""
    by_number = {attempt.attempt: attempt for attempt in run.attempts}
    for number in sorted({part.attempt for part in run.seconds if part.attempt}):
        parts = [part for part in run.seconds if part.attempt == number]
        attempt = by_number.get(number)
        start_s = 0.0 if attempt is None else attempt.started_s
        seconds: dict[_Kind, float] = {
            "held": sum(part.held_s for part in parts),
            "useful": sum(part.seconds.get(phase, 0.0) for part in parts for phase in USEFUL),
            "lost": sum(part.seconds.get(phase, 0.0) for part in parts for phase in LOST),
        }
        person = "" if attempt is None else attempt.environment.user
        end_s = start_s if attempt is None or attempt.ended_s is None else attempt.ended_s
        charge = _Charge(run.run_id, person, start_s, end_s, run.prices.get(number, run.last_price()), seconds)
        yield from [charge] if attempt else _split_by_charges(charge, owners)


def _open(attempt: Attempt, seen_s: float) -> _Charge:
    until_s = max(seen_s, attempt.started_s)
    device_s = (until_s - attempt.started_s) * attempt.world_size
    return _Charge(attempt.run_id, "", attempt.started_s, until_s, None, {}, device_s)


def _evaluation(run: _Run, owners: CostOwners) -> Iterator[_Charge]:
    """Yield the evaluations of a run, when the API charged them, or else at the end of its last attempt."""
    spent_s = sum(part.held_s for part in run.seconds if not part.attempt)
    if not spent_s:
        return
    last = run.attempts[-1] if run.attempts else None
    person = "" if last is None else last.environment.user
    charge = _Charge(run.run_id, person, 0.0, 0.0, run.last_price(), {"evaluation": spent_s})
    ended_s = 0.0 if last is None else last.ended_s or last.started_s
    yield from _split_by_charges(charge._replace(began_s=ended_s, ended_s=ended_s), owners)


def _split_by_charges(charge: _Charge, owners: CostOwners) -> Iterator[_Charge]:
    """Yield a share of a charge for each time that the API charged, or the whole if it charged nothing."""
    held = [part for part in owners.charges(charge.run_id) if part.device_s]
    for part in held:
        share = part.device_s / sum(other.device_s for other in held)
        seconds = {kind: seconds * share for kind, seconds in charge.seconds.items()}
        yield charge._replace(began_s=part.began_s, ended_s=part.ended_s, seconds=seconds)
    if not held:
        yield charge


def _waiting(found: Interruption, attempts: Sequence[Attempt]) -> _Charge:
    later = [attempt for attempt in attempts if attempt.attempt > found.attempt]
    until_s = max(found.at_s, later[0].started_s) if later else found.at_s
    person = next(attempt.environment.user for attempt in attempts if attempt.attempt == found.attempt)
    return _Charge(found.run_id, person, found.at_s, until_s, None, {"waiting": found.waited_device_s})


def _line(name: str, parts: Sequence[tuple[_Charge, float]], settings: Settings) -> CostLine:
    def hours(kind: _Kind) -> float:
        return sum(share * charge.seconds.get(kind, 0.0) for charge, share in parts) / 3600

    def money(kind: _Kind) -> float | None:
        held = [(share * charge.seconds[kind], charge.price) for charge, share in parts if charge.seconds.get(kind)]
        if not settings.device_hour_prices or any(price is None for _, price in held):
            return None
        return sum(held_s / 3600 * (price or 0.0) for held_s, price in held)

    return CostLine(
        name=name,
        num_runs=len({charge.run_id for charge, _ in parts}),
        held_device_hours=hours("held"),
        useful_device_hours=hours("useful"),
        lost_device_hours=hours("lost"),
        other_device_hours=max(0.0, hours("held") - hours("useful") - hours("lost")),
        evaluation_device_hours=hours("evaluation"),
        waiting_device_hours=hours("waiting"),
        cost=money("held"),
        evaluation_cost=money("evaluation"),
        currency=settings.currency,
    )


def _interruption(found: Interruption, price: float | None) -> InterruptionCost:
    hours = found.cost_device_s() / 3600
    return InterruptionCost(
        run_id=found.run_id,
        attempt=found.attempt,
        at_s=found.at_s,
        why=found.failure.headline() if found.failure else found.reason,
        device_hours=hours,
        cost=None if price is None else hours * price,
    )
