"""Where a running program will end: what has happened is fixed, the rest is played from today.

What is over stands as it happened; what goes on lasts as long as such things last that are not over after
this long; what has not begun begins today at the earliest. Where a gate has spoken, only those worlds go
on whose own gate said the same, so that its verdict also teaches what the gain may be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from assay.base.errors import ConfigError
from assay.base.units import percent_text
from assay.planning.actuals import Spend
from assay.planning.program.checks import strangers
from assay.planning.program.offer import Offer
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.program.progress import Actual, Progress, RunActual, called_off
from assay.planning.program.risk import StopCondition
from assay.planning.risk.compile import RISK, Baseline, NetworkItem, Simulated, simulated
from assay.planning.risk.information import spent_until
from assay.planning.risk.luck import Flags, Gates, Luck, draw_luck, says_stop
from assay.planning.risk.network import Array
from assay.planning.risk.outcome import Outcome, play
from assay.records.evaluation import Estimate

FORECAST_WORLDS = 16_384
LEAST_LIKE_US = 50
"""Fewer simulated worlds than this that agree with the verdicts so far say nothing; then all are kept, and
whoever shows the forecast says so."""

LATE_HOURS = 24.0
"""An activity that is so long over its planned end is said to be late."""

OVER_SHARE = 1.2
"""An activity or stage that will spend this much more than planned raises an alarm."""


class _Fact(NamedTuple):
    """What is known of one node of the network."""

    start_h: float
    end_h: float | None


class Alarm(NamedTuple):
    """Something to act on before it is too late."""

    level: Literal["act", "watch"]
    what: str
    text: str


class StageForecast(NamedTuple):
    """The device-hours of a stage."""

    name: str
    planned: float
    spent: float
    low: float
    """At completion; a tenth lies below."""
    middle: float
    high: float
    limit: float | None


class ProgramForecast(NamedTuple):
    """A running program's state and its future."""

    program: Program
    plan: Plan
    progress: Progress
    now_h: float
    outcome: Outcome
    """Of the rest; `device_hours` includes what was spent."""
    spent: float
    stages: tuple[StageForecast, ...]
    alarms: tuple[Alarm, ...]
    num_like_us: int
    """Simulated worlds whose gates said what ours said; below `LEAST_LIKE_US` the rest is played without
    regard to the verdicts' bearing on the gain."""
    num_worlds: int
    gain: Estimate | None = None
    """In points, of the newest decision that a gate took over; None before there is one."""

    def is_conditioned(self) -> bool:
        """Whether the verdicts so far teach what the gain may be."""
        return self.num_like_us >= LEAST_LIKE_US


def forecast(
    program: Program,
    offer: Offer,
    progress: Progress,
    *,
    num_worlds: int = FORECAST_WORLDS,
    seed: int = 0,
    baseline: Baseline,
    gain: Estimate | None = None,
) -> ProgramForecast:
    """Play the rest of an offered program; `gain`, in points, is what the newest decision found.

    Raises `ConfigError` where the progress names what is not there.
    """
    for mistake in strangers(program, progress):
        raise ConfigError(f"progress: {mistake.key}: {mistake.message}")
    compiled = simulated(program, baseline)
    drawn = draw_luck(compiled, num_worlds=num_worlds, seed=seed)
    like_us = _like_us(drawn, progress)
    luck = drawn.worlds(_chosen(like_us, len(drawn.gain)))
    now_h = float(program.calendar.hour_of(progress.now))
    facts = _facts(compiled, progress)
    conditioned, luck = _from_now(compiled, luck, facts, progress, now_h)
    outcome = play(conditioned, luck)
    over = _over_spending(compiled, progress, facts)
    outcome = replace(outcome, device_hours=outcome.device_hours + over.sum())
    spent = sum(actual.device_hours for actual in progress.activities.values())
    stages = tuple(_stages(conditioned, outcome, offer.plan, progress, over))
    found = ProgramForecast(
        program, offer.plan, progress, now_h, outcome, spent, stages, (), len(like_us), len(drawn.gain), gain
    )
    return found._replace(alarms=tuple(_alarms(found, offer)))


# What is known


def _facts(compiled: Simulated, progress: Progress) -> dict[int, _Fact]:
    """Node of the network -> what is known of it; absent: it has not begun."""
    facts: dict[int, _Fact] = {}
    hour_of = compiled.program.calendar.hour_of
    for name, moment in progress.events.items():
        facts[compiled.indices(name)[0]] = _Fact(float(hour_of(moment)), float(hour_of(moment)))
    for name, actual in progress.activities.items():
        runs = _runs_of(compiled, name)
        if runs and actual.runs:
            told: list[tuple[int, Actual | RunActual]] = list(zip(runs, actual.runs, strict=False))
        else:
            times = max(1, len(progress.verdicts.get(name, ())))
            items = [(index, compiled.items[index]) for index in compiled.indices(name)]
            told = [(index, actual) for index, item in items if item.repeat < times and item.kind != "join"]
        for index, fact in told:
            end = None if fact.ended is None else float(hour_of(fact.ended))
            facts[index] = _Fact(float(hour_of(fact.started)), end)
    return facts


def _runs_of(compiled: Simulated, activity: str) -> list[int]:
    return [index for index in compiled.indices(activity) if compiled.items[index].kind == "run"]


def _like_us(luck: Luck, progress: Progress) -> np.ndarray:
    """The worlds whose gates said what ours did."""
    same = np.ones(len(luck.gain), bool)
    for name, said in progress.verdicts.items():
        for verdict, look in zip(said, luck.gates[name], strict=False):
            same &= look.verdict == verdict
    return np.flatnonzero(same)


def _chosen(like_us: np.ndarray, num_worlds: int) -> np.ndarray:
    """As many as before: those like us over and over, or all where these are too few."""
    enough = like_us if len(like_us) >= LEAST_LIKE_US else np.arange(num_worlds)
    return np.resize(enough, num_worlds)


def _from_now(
    compiled: Simulated, luck: Luck, facts: dict[int, _Fact], progress: Progress, now_h: float
) -> tuple[Simulated, Luck]:
    network, draws = compiled.network, luck.draws
    predecessors, demand = list(network.predecessors), network.demand.copy()
    not_before = np.maximum(network.not_before_h, now_h)
    duration, delay = draws.duration_h.copy(), draws.delay_h.copy()
    active = _active(compiled, draws.is_active, progress)
    # Those who wait for nothing new wait until today; joins and what is over do not wait at all.
    for index, item in enumerate(compiled.items):
        if item.kind == "join":
            not_before[index] = 0.0
        at_h = network.not_before_h[index]
        if item.kind == "event" and index not in facts and at_h < now_h:
            # Its date has passed: it is as late as such events are that are not here after this long.
            not_before[index], delay[index] = at_h, _not_over_after(delay[index], now_h - at_h)
        if index not in facts:
            continue
        fact = facts[index]
        predecessors[index], delay[index] = (), 0.0
        not_before[index] = fact.start_h if fact.end_h is None else fact.end_h
        active[index] = True
        if fact.end_h is not None:
            demand[index], duration[index] = 0.0, 0.0
        else:
            elapsed = _worked(compiled, item, fact.start_h, now_h)
            duration[index] = _not_over_after(duration[index], elapsed)
    gates = _said(luck.gates, progress)
    conditioned = replace(
        compiled,
        network=replace(network, predecessors=tuple(predecessors), demand=demand, not_before_h=not_before),
    )
    changed = replace(
        draws,
        duration_h=duration,
        delay_h=delay,
        is_active=active,
        cut_end_h=_cut_ends(compiled, luck, now_h),
        says_stop=says_stop(compiled, gates, num_worlds=len(luck.gain)),
    )
    return conditioned, luck._replace(draws=changed, gates=gates)


def _active(compiled: Simulated, drawn: Flags, progress: Progress) -> Flags:
    """What the verdicts so far switch on and off."""
    active = drawn.copy()
    for name, said in progress.verdicts.items():
        gate = compiled.program.gates[name]
        for look, verdict in enumerate(said):
            active[compiled.asked_by(name, look + 1)] = verdict == "again"
            for dropped in gate.narrow.drops if verdict == "narrow" else ():
                active[compiled.indices(dropped)] = False
    return active


def _said(gates: Gates, progress: Progress) -> Gates:
    found = dict(gates)
    for name, said in progress.verdicts.items():
        looks = found[name]
        known = (
            look._replace(verdict=np.full(len(look.verdict), verdict))
            for look, verdict in zip(looks, said, strict=False)
        )
        found[name] = (*known, *looks[len(said) :])
    return found


def _worked(compiled: Simulated, item: NetworkItem, start_h: float, now_h: float) -> float:
    if item.kind not in ("work", "gate"):
        return now_h - start_h
    worked = compiled.network.working_time.worked(np.array([start_h, now_h]))
    return float(worked[1] - worked[0])


def _not_over_after(durations: Array, elapsed_h: float) -> Array:
    """Durations of those worlds in which it lasts longer than this; a twentieth more where none does."""
    longer = durations[durations > elapsed_h]
    return np.resize(longer, durations.shape) if longer.size else np.full_like(durations, 1.05 * elapsed_h)


def _cut_ends(compiled: Simulated, luck: Luck, now_h: float) -> Array:
    """Bookings stand as stated; what a risk would have taken before today did not happen."""
    start, end = luck.draws.cut_start_h, luck.draws.cut_end_h
    is_risk = np.array([[cut.name.startswith(RISK)] for cut in compiled.cuts], bool).reshape(-1, 1)
    return np.where(is_risk & (start < now_h), start, end)


# What it costs


def _over_spending(compiled: Simulated, progress: Progress, facts: dict[int, _Fact]) -> Array:
    """Per node: device-hours that are spent and that the replay does not count (it holds nothing for what
    is over)."""
    spent = np.zeros(len(compiled.items))
    for name, actual in progress.activities.items():
        own = _runs_of(compiled, name)
        if actual.runs:
            for position, run in enumerate(actual.runs):
                index = own[min(position, len(own) - 1)]
                if position >= len(own) or facts[index].end_h is not None:
                    spent[index] += run.device_hours
        elif own and actual.ended is not None:
            spent[own[0]] += actual.device_hours
    return spent


def _stages(
    compiled: Simulated, outcome: Outcome, plan: Plan, progress: Progress, over: Array
) -> Iterator[StageForecast]:
    program = compiled.program
    nodes = program.nodes()
    for stage, ahead in outcome.stage_device_hours().items():
        planned = sum(item.device_hours() for item in plan.items if nodes[item.name].stage == stage)
        spent = sum(a.device_hours for n, a in progress.activities.items() if nodes[n].stage == stage)
        done = sum(hours for hours, item in zip(over, compiled.items, strict=True) if item.stage == stage)
        low, middle, high = np.quantile(ahead + done, (0.1, 0.5, 0.9)).tolist()
        limit = program.budget.stages.get(stage)
        yield StageForecast(stage, float(planned), spent, low, middle, high, limit)


# Alarms


def _alarms(found: ProgramForecast, offer: Offer) -> list[Alarm]:
    kinds = (_stop_alarms, _stage_alarms, _activity_alarms, _waiting_alarms)
    alarms = [*_promise_alarms(found, offer), *(alarm for kind in kinds for alarm in kind(found))]
    return sorted(alarms, key=lambda alarm: alarm.level)


def _promise_alarms(found: ProgramForecast, offer: Offer) -> Iterator[Alarm]:
    on_time, over = found.outcome.p_on_time(), found.outcome.p_over_budget()
    if on_time < offer.promised_on_time:
        by, promised = found.program.decision.by, percent_text(offer.promised_on_time)
        text = f"A decision by the {by} has become {percent_text(on_time)} likely; promised was {promised}."
        yield Alarm("act", "date", text)
    if over > offer.promised_over_budget:
        budget, promised = found.program.budget.device_hours, percent_text(offer.promised_over_budget)
        text = f"Breaking the budget of {budget:,.0f} has become {percent_text(over)} likely; "
        yield Alarm("act", "budget", f"{text}promised was {promised} at most.")


def _stop_alarms(found: ProgramForecast) -> Iterator[Alarm]:
    """Stop conditions on numbers that a forecast or the ledger knows."""
    runs = [run for actual in found.progress.activities.values() for run in actual.runs]
    known: dict[str, Array] = {
        "device_hours": found.outcome.device_hours,
        "decision_day": found.outcome.decision_h / 24.0,
    }
    if tried := sum(run.num_attempts for run in runs):
        known["failure_share"] = np.array([sum(run.num_failed for run in runs) / tried])
    for name, stop in found.program.stops.items():
        if stop.watch == "gain" and found.gain is not None:
            yield from _gain_alarm(found.gain, name, stop)
        if stop.watch not in known:
            continue
        chance = float(_passes(known[stop.watch], stop).mean())
        if chance >= 0.1:
            seen = f"{percent_text(chance)} likely"
            if stop.watch == "failure_share":
                seen = f"seen: {percent_text(float(known[stop.watch][0]))}"
            text = f"{stop.title} ({seen}): then {stop.then}."
            yield Alarm("act" if chance >= 0.5 else "watch", name, text)


def _passes(values: Array, stop: StopCondition) -> Flags:
    if stop.above is not None:
        return np.asarray(values > stop.above)
    assert stop.below is not None, stop
    return np.asarray(values < stop.below)


def _gain_alarm(gain: Estimate, name: str, stop: StopCondition) -> Iterator[Alarm]:
    """To act where the whole interval lies beyond the limit, to watch where the estimate does."""
    low, high = (end if end is not None else gain.value for end in (gain.low, gain.high))
    if not _passes(np.array([gain.value]), stop).all():
        return
    is_whole = bool(_passes(np.array([low, high]), stop).all()) and gain.low is not None
    seen = f"seen: {gain.value:+.2f} points, {low:+.2f} to {high:+.2f}"
    yield Alarm("act" if is_whole else "watch", name, f"{stop.title} ({seen}): then {stop.then}.")


def unwatched(found: ProgramForecast) -> list[StopCondition]:
    """Stop conditions on what no forecast and no decision known here tells."""
    known = {"device_hours", "decision_day", "failure_share"} | ({"gain"} if found.gain is not None else set())
    return [stop for stop in found.program.stops.values() if stop.watch not in known]


def _stage_alarms(found: ProgramForecast) -> Iterator[Alarm]:
    for stage in found.stages:
        limit = stage.limit or OVER_SHARE * stage.planned
        if stage.planned and stage.middle > limit:
            kind = "its limit of" if stage.limit else f"{OVER_SHARE:.0%} of what was planned,"
            heading = (
                f"{found.program.stages[stage.name].title} is heading for {stage.middle:,.0f} device-hours"
            )
            yield Alarm("act", stage.name, f"{heading}, above {kind} {limit:,.0f}.")


def _activity_alarms(found: ProgramForecast) -> Iterator[Alarm]:
    nodes, items = found.program.nodes(), {item.name: item for item in found.plan.items}
    for name, actual in found.progress.activities.items():
        if (planned := items.get(name)) is None:
            continue
        if actual.ended is None and found.now_h > planned.end_h + LATE_HOURS:
            late = (found.now_h - planned.end_h) / 24.0
            text = f"'{nodes[name].title}' goes on, {late:.1f} days past its planned end."
            yield Alarm("watch", name, text)
        hours = planned.device_hours()
        if hours and actual.device_hours > OVER_SHARE * hours:
            spent = f"'{nodes[name].title}' has spent {actual.device_hours:,.0f} device-hours"
            yield Alarm("watch", name, f"{spent}; planned were {hours:,}.")


def _waiting_alarms(found: ProgramForecast) -> Iterator[Alarm]:
    """What could have begun by now, was planned to, and has not."""
    progress, nodes = found.progress, found.program.nodes()
    over = {name for name, actual in progress.activities.items() if actual.ended is not None}
    over |= set(progress.events) | set(progress.verdicts)
    dropped = called_off(found.program, progress)
    if any("stop" in said for said in progress.verdicts.values()):
        return
    for item in found.plan.items:
        late_h = found.now_h - item.start_h
        is_due = late_h > LATE_HOURS and item.name not in {*progress.activities, *progress.verdicts, *dropped}
        if is_due and {each.name for each in nodes[item.name].after} <= over | dropped:
            text = f"'{nodes[item.name].title}' could have begun; it was planned {late_h / 24:.1f} days ago."
            yield Alarm("watch", item.name, text)


def left_by_day(
    found: ProgramForecast, spends: Sequence[Spend], *, num_days: int
) -> tuple[list[float], list[float]]:
    """Device-hours of the budget that are left after each day: (as planned, as it is until today)."""
    budget = found.program.budget.device_hours
    planned, actual = [], []
    for day in range(num_days + 1):
        hour = 24.0 * day
        held = sum(
            run.devices * max(0.0, min(hour, until) - begin)
            for item in found.plan.items
            for run in item.runs
            for begin, until in run.holds
            if begin < hour
        )
        planned.append(budget - held)
        if hour <= found.now_h:
            actual.append(budget - _spent_until(spends, hour))
    return planned, actual


def left_ahead(found: ProgramForecast, *, days: Sequence[float], shares: Sequence[float]) -> list[list[float]]:
    """Quantiles of what is left of the budget on days to come, over the forecast worlds."""
    budget = found.program.budget.device_hours
    outcome = found.outcome
    fixed = outcome.device_hours - outcome.simulated.devices() @ outcome.replay.held_h
    left = []
    for day in days:
        spent = fixed + spent_until(outcome, np.full(len(fixed), 24.0 * day))
        left.append(np.quantile(budget - spent, shares).tolist())
    return [list(column) for column in zip(*left, strict=True)]


def _spent_until(spends: Sequence[Spend], hour: float) -> float:
    total = 0.0
    for spend in spends:
        length = max(spend.end_h - spend.start_h, 1e-9)
        total += spend.device_hours * min(1.0, max(0.0, (hour - spend.start_h) / length))
    return total
