"""Device-hours and money of all runs by project, program, person or day (UTC).

Sums of the same ledger rows as `assay runs goodput`: without a window, the totals are equal. An attempt that spans
midnight is split between the days in proportion, as in the API's costs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Literal, NamedTuple, get_args

from assay.base.errors import ConfigError
from assay.planning.actuals import run_ids_by_activity
from assay.planning.program.file import read_program
from assay.records.commit import RunFinished
from assay.records.fine_tuning_job import JobCharged
from assay.records.goodput import USEFUL, Interruption
from assay.records.phase import Phase
from assay.records.run import Attempt, PhaseSeconds
from assay.reporting.views.view import View
from assay.serving.admin.spend import ChargedResources, HeldTime, by_day, day_of
from assay.store.followed import followed_programs
from assay.store.home import Home
from assay.store.ledger.goodput import interruptions_of
from assay.store.ledger.ledger import Ledger
from assay.store.settings import Settings

Grouping = Literal["project", "program", "person", "day"]
LOST: tuple[Phase, ...] = ("lost", "stalled")
"""Phases of work that was rolled back, and of hangs."""


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
    """Steps that were rolled back, and hangs."""
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


class CostOwners(NamedTuple):
    """To what a run belongs, by its id."""

    project: Callable[[str], str]
    program: Callable[[str], str]
    charges: Callable[[str], Sequence[HeldTime]]
    """When the evaluations of a job, an eval run or a batch held devices."""


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


def grouping(text: str) -> Grouping:
    """Return what costs are grouped by. Raises `ConfigError` for another word."""
    known: tuple[Grouping, ...] = get_args(Grouping)
    found = next((by for by in known if by == text), None)
    if found is None:
        raise ConfigError(f"by={text}: expected one of {', '.join(known)}.")
    return found


def utc_day(name: str, text: str | None) -> date | None:
    """Return the day in the option or filter `name`; None if it is empty. Raises `ConfigError` for another text."""
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise ConfigError(f"{name}={text}: expected a day such as 2026-11-28.") from None


class _Span(NamedTuple):
    began_s: float
    ended_s: float
    device_s: float = 1.0


class _Charge(NamedTuple):
    """Device-seconds of a run within a span of time."""

    run_id: str
    person: str
    span: _Span
    useful_s: float = 0.0
    lost_s: float = 0.0
    held_s: float = 0.0
    evaluation_s: float = 0.0
    waited_s: float = 0.0
    price: float | None = None
    """Price of a device-hour."""


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
    attempts, seconds = _by_run(ledger.attempts()), _by_run(ledger.phase_seconds())
    runs = {run.run_id: run for run in ledger.runs()}
    drills = {run_id for run_id, run in runs.items() if run.is_drill}
    finished = _finished_by(ledger)
    charges: list[_Charge] = []
    interruptions: list[tuple[Interruption, float | None]] = []
    for run_id in sorted({*attempts, *seconds} - drills):
        lived, parts = attempts.get(run_id, []), seconds.get(run_id, [])
        prices = {attempt.attempt: settings.price_of(attempt) for attempt in lived}
        charges += _training(run_id, lived, parts, prices)
        charges += _evaluation(run_id, lived, parts, prices, owners)
        ended = [attempt for attempt in lived if attempt.ended_s is not None]
        last = finished.get(run_id)
        by_end = last if any(attempt.attempt == last for attempt in ended) else None
        for found in interruptions_of(ended, parts, finished_by=by_end):
            interruptions.append((found, prices.get(found.attempt)))
            charges.append(_waiting(found, ended))
    names: Mapping[Grouping, Callable[[_Charge], str]] = {
        "project": lambda charge: owners.project(charge.run_id),
        "program": lambda charge: owners.program(charge.run_id),
        "person": lambda charge: charge.person,
        "day": lambda charge: "",
    }
    grouped: dict[str, list[tuple[_Charge, float]]] = {}
    together: list[tuple[_Charge, float]] = []
    for charge in charges:
        name = names[by](charge)
        for day, share in by_day(charge.span).items():
            if (since is None or day >= since) and (until is None or day <= until):
                grouped.setdefault(day.isoformat() if by == "day" else name, []).append((charge, share))
                together.append((charge, share))
    lines = [_line(name, parts, settings) for name, parts in grouped.items()]
    lines.sort(key=lambda line: line.name if by == "day" else -line.held_device_hours)
    return CostReport(
        by=by,
        since=None if since is None else since.isoformat(),
        until=None if until is None else until.isoformat(),
        lines=tuple(lines),
        total=_line("all", together, settings),
        interruptions=tuple(_dearest(interruptions, settings, since, until)),
        num_open_attempts=sum(
            attempt.ended_s is None for run_id in {*attempts} - drills for attempt in attempts[run_id]
        ),
    )


def _by_run(rows: Iterable[Attempt] | Iterable[PhaseSeconds]) -> dict[str, list]:  # type: ignore[type-arg]
    found: dict[str, list] = {}  # type: ignore[type-arg]
    for row in rows:
        found.setdefault(row.run_id, []).append(row)
    return found


def _finished_by(ledger: Ledger) -> dict[str, int]:
    """Return the attempt that made the last step of each finished run."""
    with ledger.reading() as connection:
        rows = connection.execute(
            "SELECT run_id, record FROM log_entries WHERE type = 'finished' ORDER BY run_id, entry_index"
        )
    return {run_id: RunFinished.from_json(text, source=f"ledger, log of {run_id}").attempt for run_id, text in rows}


def _training(
    run_id: str, attempts: Sequence[Attempt], seconds: Sequence[PhaseSeconds], prices: Mapping[int, float | None]
) -> Iterable[_Charge]:
    by_number = {attempt.attempt: attempt for attempt in attempts}
    last = prices[max(prices)] if prices else None
    for number in sorted({part.attempt for part in seconds if part.attempt}):
        parts = [part for part in seconds if part.attempt == number]
        attempt = by_number.get(number)
        start_s = 0.0 if attempt is None else attempt.started_s
        yield _Charge(
            run_id,
            "" if attempt is None else attempt.environment.user,
            _Span(start_s, start_s if attempt is None or attempt.ended_s is None else attempt.ended_s),
            useful_s=sum(part.seconds.get(phase, 0.0) for part in parts for phase in USEFUL),
            lost_s=sum(part.seconds.get(phase, 0.0) for part in parts for phase in LOST),
            held_s=sum(part.held_s for part in parts),
            price=prices.get(number, last),
        )


def _evaluation(
    run_id: str,
    attempts: Sequence[Attempt],
    seconds: Sequence[PhaseSeconds],
    prices: Mapping[int, float | None],
    owners: CostOwners,
) -> Iterable[_Charge]:
    """Yield the evaluations of a run, when the API charged them, or else at the end of its last attempt."""
    spent_s = sum(part.held_s for part in seconds if not part.attempt)
    if not spent_s:
        return
    last = attempts[-1] if attempts else None
    ended_s = 0.0 if last is None else last.ended_s or last.started_s
    held = [charge for charge in owners.charges(run_id) if charge.device_s] or [_Span(ended_s, ended_s)]
    whole_s = sum(charge.device_s for charge in held)
    price = prices[max(prices)] if prices else None
    for charge in held:
        span = _Span(charge.began_s, charge.ended_s)
        part_s = spent_s * charge.device_s / whole_s
        person = "" if last is None else last.environment.user
        yield _Charge(run_id, person, span, evaluation_s=part_s, price=price)


def _waiting(found: Interruption, attempts: Sequence[Attempt]) -> _Charge:
    later = [attempt for attempt in attempts if attempt.attempt > found.attempt]
    until_s = max(found.at_s, later[0].started_s) if later else found.at_s
    person = next(attempt.environment.user for attempt in attempts if attempt.attempt == found.attempt)
    return _Charge(found.run_id, person, _Span(found.at_s, until_s), waited_s=found.waited_device_s)


def _line(name: str, parts: Sequence[tuple[_Charge, float]], settings: Settings) -> CostLine:
    def hours(seconds: Callable[[_Charge], float]) -> float:
        return sum(share * seconds(charge) for charge, share in parts) / 3600

    held, useful, lost = (
        hours(lambda charge: charge.held_s), hours(lambda charge: charge.useful_s), hours(lambda charge: charge.lost_s)
    )  # fmt: skip
    return CostLine(
        name=name,
        num_runs=len({charge.run_id for charge, _ in parts}),
        held_device_hours=held,
        useful_device_hours=useful,
        lost_device_hours=lost,
        other_device_hours=max(0.0, held - useful - lost),
        evaluation_device_hours=hours(lambda charge: charge.evaluation_s),
        waiting_device_hours=hours(lambda charge: charge.waited_s),
        cost=_money([(charge.held_s * share, charge.price) for charge, share in parts], settings),
        evaluation_cost=_money([(charge.evaluation_s * share, charge.price) for charge, share in parts], settings),
        currency=settings.currency,
    )


def _money(held: Sequence[tuple[float, float | None]], settings: Settings) -> float | None:
    if not settings.device_hour_prices or any(price is None and held_s for held_s, price in held):
        return None
    return sum(held_s / 3600 * (price or 0.0) for held_s, price in held)


def _dearest(
    interruptions: Sequence[tuple[Interruption, float | None]],
    settings: Settings,
    since: date | None,
    until: date | None,
) -> Iterable[InterruptionCost]:
    for found, price in sorted(interruptions, key=lambda pair: -pair[0].cost_device_s()):
        day, hours = day_of(found.at_s), found.cost_device_s() / 3600
        if (since is None or day >= since) and (until is None or day <= until):
            yield InterruptionCost(
                run_id=found.run_id,
                attempt=found.attempt,
                at_s=found.at_s,
                why=found.failure.headline() if found.failure else found.reason,
                device_hours=hours,
                cost=None if price is None or not settings.device_hour_prices else hours * price,
            )
