"""Forecasts the end of a running program: the past is fixed, the rest is simulated from today.

For activities in progress, `planning/in_progress` provides what was spent, what remains and the expected end.
Each sample varies what remains. Without a noted end, the duration is conditioned on not having ended yet.
Unstarted activities start today at the earliest. If gates have decided, only samples with the same verdicts
are used, so that the verdicts inform the gain.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from assay.base.units import percent_text
from assay.planning.actuals import Spend
from assay.planning.in_progress import OVERDUE, ActivityInProgress, RunInProgress, activities_in_progress
from assay.planning.program.checks import refuse, strangers
from assay.planning.program.offer import Offer
from assay.planning.program.plan import Plan, Planned
from assay.planning.program.program import Program
from assay.planning.program.progress import Progress, called_off
from assay.planning.program.risk import StopCondition
from assay.planning.simulation.compile import (
    RISK,
    Baseline,
    CompiledProgram,
    NetworkItem,
    PlannedReduction,
    compile_program,
)
from assay.planning.simulation.information import spent_until
from assay.planning.simulation.network import Array, Flags
from assay.planning.simulation.outcome import Outcome, simulate_samples
from assay.planning.simulation.sampling import Gates, ProgramSamples, is_stop, sample_program
from assay.records.evaluation import Estimate

FORECAST_SAMPLES = 16_384
MIN_MATCHING_SAMPLES = 50
"""With fewer matching samples, all samples are used, and the forecast says so."""

LATE_HOURS = 24.0
"""Hours past its planned end after which an activity is reported as late."""

OVER_SHARE = 1.2
"""An activity or stage that exceeds its plan by this factor raises an alarm."""

_PLENTY = 1e9
"""Added to the capacity before today, so that what happened is not limited."""


class _Fact(NamedTuple):
    """What is known about a node of the network that has started."""

    start_h: float
    end_h: float | None
    """None: it has not ended."""
    held_h: float = 0.0
    """Hours (working hours of people) until now."""
    left_h: float = 0.0
    """Expected remaining hours."""
    is_declared: bool = False
    """Whether the notes state an expected end."""


class Alarm(NamedTuple):
    """A condition that needs attention."""

    level: Literal["act", "watch"]
    what: str
    text: str
    then: Literal["stop", "narrow", "review"] | None = None
    """Action of the stop condition; None if it is not one."""


class StageEstimate(NamedTuple):
    """The device-hours of a stage."""

    name: str
    planned: float
    spent: float
    low: float
    """At completion: 10% quantile."""
    middle: float
    high: float
    limit: float | None


class ProgramEstimate(NamedTuple):
    """State and forecast of a running program."""

    program: Program
    plan: Plan
    progress: Progress
    now_h: float
    outcome: Outcome
    """`device_hours` includes what was spent."""
    in_progress: dict[str, ActivityInProgress]
    """By name."""
    in_progress_device_hours: dict[str, Array]
    """In each sample: spent and remaining."""
    known: frozenset[int]
    """Network nodes that have started."""
    stages: tuple[StageEstimate, ...]
    alarms: tuple[Alarm, ...]
    num_matching: int
    """Samples with the same verdicts as the program; below `MIN_MATCHING_SAMPLES` the verdicts are ignored."""
    num_samples: int
    gain: Estimate | None = None
    """In points, from the newest decision that a gate used; None without one."""

    @property
    def spent(self) -> float:
        return sum(activity.spent for activity in self.in_progress.values())

    @property
    def to_come(self) -> float:
        """Return the expected device-hours of activities in progress from now on."""
        return sum(activity.to_come for activity in self.in_progress.values())

    def is_conditioned(self) -> bool:
        """Return whether the samples are conditioned on the verdicts so far."""
        return self.num_matching >= MIN_MATCHING_SAMPLES


def forecast(
    program: Program,
    offer: Offer,
    progress: Progress,
    *,
    num_samples: int = FORECAST_SAMPLES,
    seed: int = 0,
    baseline: Baseline,
    gain: Estimate | None = None,
) -> ProgramEstimate:
    """Simulate the rest of an offered program; `gain` is the newest decision's estimate, in points.

    Raises `ConfigError` if the progress has names that the program does not.
    """
    refuse(strangers(program, progress))
    compiled = compile_program(program, baseline)
    sampled = sample_program(compiled, num_samples=num_samples, seed=seed)
    matching = _matching(sampled, progress)
    samples = sampled.select(_chosen(matching, len(sampled.gain)))
    now_h = float(program.calendar.hour_of(progress.now))
    in_progress = activities_in_progress(program, offer.plan, progress)
    facts = _facts(compiled, progress, in_progress, now_h)
    conditioned, samples, left = _from_now(compiled, samples, facts, progress, now_h)
    outcome = simulate_samples(conditioned, samples)
    spending = {
        name: _device_hours(activity, _runs_of(compiled, name), facts, left, outcome, now_h)
        for name, activity in in_progress.items()
    }
    remaining = _remaining_device_hours(outcome, facts)
    total = np.sum([*spending.values(), remaining.sum(axis=0)], axis=0)
    outcome = replace(outcome, device_hours=total)
    stages = tuple(_stages(outcome, offer.plan, in_progress, spending, remaining))
    found = ProgramEstimate(
        program,
        offer.plan,
        progress,
        now_h,
        outcome,
        in_progress,
        spending,
        frozenset(facts),
        stages,
        (),
        len(matching),
        len(sampled.gain),
        gain,
    )
    return found._replace(alarms=tuple(_alarms(found, offer)))


# What is known


def _facts(
    compiled: CompiledProgram, progress: Progress, in_progress: dict[str, ActivityInProgress], now_h: float
) -> dict[int, _Fact]:
    """Return node -> what is known; nodes that have not started are absent."""
    facts: dict[int, _Fact] = {}
    hour_of = compiled.program.calendar.hour_of
    for name, moment in progress.events.items():
        facts[compiled.indices(name)[0]] = _Fact(float(hour_of(moment)), float(hour_of(moment)))
    for name, activity in in_progress.items():
        if runs := _runs_of(compiled, name):
            for index, run in itertools.zip_longest(runs, activity.runs[: len(runs)]):
                if run is not None:
                    facts[index] = _fact_of_run(activity, run, now_h)
                elif activity.actual.ended is not None and not compiled.items[index].repeat:
                    facts[index] = _Fact(float(activity.item.start_h), float(activity.item.end_h))
            continue
        times = max(1, len(progress.verdicts.get(name, ())))
        for index in compiled.indices(name):
            if compiled.items[index].repeat < times:
                facts[index] = _fact_of_work(compiled, activity, now_h)
    return facts


def _fact_of_run(activity: ActivityInProgress, run: RunInProgress, now_h: float) -> _Fact:
    begin_h, end_h = float(run.run.holds[0][0]), float(run.run.holds[-1][1])
    if activity.actual.ended is not None or run.is_over(int(now_h)):
        return _Fact(begin_h, end_h)
    held, left = run.held_h(int(now_h)), run.left_h(int(now_h))
    # One that is still to begin waits for room only.
    return _Fact(min(begin_h, now_h), None, held, left, activity.actual.expected_end is not None)


def _fact_of_work(compiled: CompiledProgram, activity: ActivityInProgress, now_h: float) -> _Fact:
    start_h, end_h = float(activity.item.start_h), float(activity.item.end_h)
    if activity.actual.ended is not None:
        return _Fact(start_h, end_h)
    hours = compiled.network.working_time.working(np.array([start_h, now_h, end_h]))
    held, left = np.diff(hours).tolist()
    return _Fact(start_h, None, held, left, activity.actual.expected_end is not None)


def _runs_of(compiled: CompiledProgram, activity: str) -> list[int]:
    return [index for index in compiled.indices(activity) if compiled.items[index].kind == "run"]


def _matching(samples: ProgramSamples, progress: Progress) -> np.ndarray:
    """Return the samples whose gates decided as the program's gates did."""
    same = np.ones(len(samples.gain), bool)
    for name, verdicts in progress.verdicts.items():
        for verdict, look in zip(verdicts, samples.gates[name], strict=False):
            same &= look.verdict == verdict
    return np.flatnonzero(same)


def _chosen(matching: np.ndarray, num_samples: int) -> np.ndarray:
    """Repeat the matching samples to the original number; use all samples if too few match."""
    enough = matching if len(matching) >= MIN_MATCHING_SAMPLES else np.arange(num_samples)
    return np.resize(enough, num_samples)


def _from_now(
    compiled: CompiledProgram,
    samples: ProgramSamples,
    facts: dict[int, _Fact],
    progress: Progress,
    now_h: float,
) -> tuple[CompiledProgram, ProgramSamples, dict[int, Array]]:
    """Return the network and samples of the rest, and the remaining hours of each node in progress."""
    network, replay_samples = compiled.network, samples.replay_samples
    predecessors, demand = list(network.predecessors), network.demand.copy()
    not_before, longest = np.maximum(network.not_before_h, now_h), network.longest_hold_h.copy()
    duration, delay = replay_samples.duration_h.copy(), replay_samples.delay_h.copy()
    active = _active(compiled, replay_samples.is_active, progress)
    left: dict[int, Array] = {}
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
            continue
        left[index] = _left(item, duration[index], fact)
        passed = fact.held_h if network.in_working_hours[index] else now_h - fact.start_h
        duration[index] = passed + left[index]
        longest[index] += passed
    gates = _with_verdicts(samples.gates, progress)
    network = replace(
        network,
        predecessors=tuple(predecessors),
        demand=demand,
        not_before_h=not_before,
        longest_hold_h=longest,
    )
    reduction_end = _reduction_ends(compiled, samples, now_h)
    conditioned, reductions = _unlimited_before_now(
        replace(compiled, network=network), replay_samples.reduction_start_h, reduction_end, now_h
    )
    changed = replace(
        replay_samples,
        duration_h=duration,
        delay_h=delay,
        is_active=active,
        reduction_start_h=reductions[0],
        reduction_end_h=reductions[1],
        is_stop=is_stop(compiled, gates, num_samples=len(samples.gain)),
    )
    return conditioned, samples._replace(replay_samples=changed, gates=gates), left


def _unlimited_before_now(
    compiled: CompiledProgram, start: Array, end: Array, now_h: float
) -> tuple[CompiledProgram, tuple[Array, Array]]:
    """Remove all capacity limits before now."""
    network = compiled.network
    count, num_samples = len(network.capacity), start.shape[1]
    if now_h <= 0:
        return compiled, (start, end)
    changed = replace(
        compiled,
        network=replace(
            network,
            reductions=(
                *network.reductions,
                *((resource, -_PLENTY) for resource in range(count)),
            ),
        ),
        reductions=(
            *compiled.reductions,
            *(PlannedReduction("so far", "", -_PLENTY, 0.0, now_h) for _ in range(count)),
        ),
    )
    until = np.full((count, num_samples), now_h)
    return changed, (np.concatenate([start, np.zeros_like(until)]), np.concatenate([end, until]))


def _active(compiled: CompiledProgram, sampled: Flags, progress: Progress) -> Flags:
    active = sampled.copy()
    for name, verdicts in progress.verdicts.items():
        gate = compiled.program.gates[name]
        for look, verdict in enumerate(verdicts):
            active[compiled.repeated_nodes(name, look + 1)] = verdict == "again"
            for dropped in gate.narrow.drops if verdict == "narrow" else ():
                active[compiled.indices(dropped)] = False
    return active


def _with_verdicts(gates: Gates, progress: Progress) -> Gates:
    found = dict(gates)
    for name, verdicts in progress.verdicts.items():
        looks = found[name]
        known = (
            look._replace(verdict=np.full(len(look.verdict), verdict))
            for look, verdict in zip(looks, verdicts, strict=False)
        )
        found[name] = (*known, *looks[len(verdicts) :])
    return found


def _left(item: NetworkItem, durations: Array, fact: _Fact) -> Array:
    """Return the remaining hours of a node in progress. With a stated end, each sample scales it; otherwise
    the duration is conditioned on exceeding the hours so far."""
    if fact.is_declared or not fact.held_h:
        return np.asarray(fact.left_h * durations / item.planned_h)
    longer = durations[durations > fact.held_h]
    return np.resize(longer - fact.held_h, durations.shape) if longer.size else np.full_like(durations, fact.left_h)


def _not_over_after(durations: Array, elapsed_h: float) -> Array:
    """Return durations conditioned on exceeding the elapsed hours; 5% more if no sample does."""
    longer = durations[durations > elapsed_h]
    return np.resize(longer, durations.shape) if longer.size else np.full_like(durations, OVERDUE * elapsed_h)


def _reduction_ends(compiled: CompiledProgram, samples: ProgramSamples, now_h: float) -> Array:
    """Return the ends of reductions; a risk that would have occurred before today did not."""
    start, end = samples.replay_samples.reduction_start_h, samples.replay_samples.reduction_end_h
    is_risk = np.array([[reduction.name.startswith(RISK)] for reduction in compiled.reductions], bool).reshape(-1, 1)
    return np.where(is_risk & (start < now_h), start, end)


# What it costs


def _device_hours(
    activity: ActivityInProgress,
    indices: Sequence[int],
    facts: dict[int, _Fact],
    left: dict[int, Array],
    outcome: Outcome,
    now_h: float,
) -> Array:
    """Return an activity's device-hours in each sample, from start to end.

    Remaining hours, stated or planned, are scaled by the same factor, which does not depend on noted hours.
    So stating the default changes nothing, and more is never less.
    """
    if activity.actual.ended is not None:
        return np.full(len(outcome.device_hours), activity.spent)
    factor = _remaining_factor(activity, indices, facts, left, outcome, now_h)
    if activity.actual.device_hours_to_come is not None:
        return np.asarray(activity.spent + activity.to_come * factor)
    on_open, by_now = activity.spent_on_open_runs(), _planned_by_now(activity, now_h)
    total = by_now + (activity.planned_open - by_now) * factor
    return np.asarray(activity.spent - on_open + np.maximum(on_open, total))


def _planned_by_now(activity: ActivityInProgress, now_h: float) -> float:
    """Return the planned device-hours of its open runs until now; if overdue, 5% more remain."""
    held = float(sum(run.run.devices * run.held_h(int(now_h)) for run in activity.open_runs()))
    return held if held < activity.planned_open else activity.planned_open / OVERDUE


def _remaining_factor(
    activity: ActivityInProgress,
    indices: Sequence[int],
    facts: dict[int, _Fact],
    left: dict[int, Array],
    outcome: Outcome,
    now_h: float,
) -> Array:
    """Return for each sample (remaining hold of its open runs) / (expected), averaged over runs independently
    of their noted ends; less if a stop ends them earlier."""
    num_samples, items = len(outcome.device_hours), outcome.compiled.items
    expected_hours, reached_hours, factor, weights = (
        np.zeros(num_samples),
        np.zeros(num_samples),
        np.zeros(num_samples),
        0.0,
    )
    node_indices = [*indices, *(-1 for _ in activity.runs[len(indices) :])]
    for index, run in zip(node_indices, activity.runs, strict=False):
        if run.actual is not None and run.actual.ended is not None:
            continue
        devices, hours = run.run.devices, float(run.left_h(int(now_h)))
        if index not in left:
            expected_hours, reached_hours = expected_hours + devices * hours, reached_hours + devices * hours
            weight, own = devices * hours, np.ones(num_samples)
        else:
            fact = facts[index]
            expected_hours = expected_hours + devices * left[index]
            reached_hours = reached_hours + devices * np.maximum(
                0.0, outcome.replay.held_h[index] - (now_h - fact.start_h)
            )
            planned_h = max(1.0, items[index].planned_h - fact.held_h) if fact.is_declared else hours
            weight, own = devices * planned_h, left[index] / max(hours, 1e-9)
        factor, weights = factor + weight * own, weights + weight
    reached = np.divide(reached_hours, expected_hours, out=np.ones(num_samples), where=expected_hours > 0).clip(
        0.0, 1.0
    )
    return np.asarray((factor / weights if weights else 1.0) * reached)


def _remaining_device_hours(outcome: Outcome, facts: dict[int, _Fact]) -> Array:
    """Return [node, sample]: device-hours of unstarted nodes."""
    remaining: Array = outcome.compiled.devices()[:, None] * outcome.replay.held_h
    remaining[list(facts)] = 0.0
    return remaining


def _stages(
    outcome: Outcome,
    plan: Plan,
    in_progress: dict[str, ActivityInProgress],
    spending: dict[str, Array],
    remaining: Array,
) -> Iterator[StageEstimate]:
    compiled = outcome.compiled
    program, nodes = compiled.program, compiled.program.nodes()
    for stage in program.stages:
        planned = sum(item.device_hours() for item in plan.items if nodes[item.name].stage == stage)
        own = [name for name in in_progress if nodes[name].stage == stage]
        rows = [index for index, item in enumerate(compiled.items) if item.stage == stage]
        total = np.sum([remaining[rows].sum(axis=0), *(spending[name] for name in own)], axis=0)
        low, middle, high = np.quantile(total, (0.1, 0.5, 0.9)).tolist()
        spent = sum(in_progress[name].spent for name in own)
        yield StageEstimate(stage, float(planned), spent, low, middle, high, program.budget.stages.get(stage))


# Alarms


def _alarms(found: ProgramEstimate, offer: Offer) -> list[Alarm]:
    kinds = (_stop_alarms, _stage_alarms, _activity_alarms, _waiting_alarms)
    alarms = [*_target_alarms(found, offer), *(alarm for kind in kinds for alarm in kind(found))]
    return sorted(alarms, key=lambda alarm: alarm.level)


def _target_alarms(found: ProgramEstimate, offer: Offer) -> Iterator[Alarm]:
    on_time, over = found.outcome.p_on_time(), found.outcome.p_over_budget()
    if on_time < offer.target_on_time:
        by = found.program.calendar.deadline_text(found.program.decision.by)
        text = f"A decision by the {by} now has a probability of {found.outcome.probability_text(on_time)}; "
        yield Alarm("act", "date", f"{text}the target is {percent_text(offer.target_on_time)}.")
    if over > offer.target_over_budget:
        budget, target = found.program.budget.device_hours, percent_text(offer.target_over_budget)
        probability = found.outcome.probability_text(over)
        text = f"Exceeding the budget of {budget:,.0f} now has a probability of {probability}; "
        yield Alarm("act", "budget", f"{text}the target is {target} at most.")


def _stop_alarms(found: ProgramEstimate) -> Iterator[Alarm]:
    """Yield alarms of stop conditions on numbers that the forecast or the ledger knows."""
    runs = [run for actual in found.progress.activities.values() for run in actual.runs]
    known: dict[str, Array] = {
        "device_hours": found.outcome.device_hours,
        "decision_day": found.outcome.decision_h / 24.0,
    }
    if evaluated := sum(run.num_attempts for run in runs):
        known["failure_share"] = np.array([sum(run.num_failed for run in runs) / evaluated])
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
            yield Alarm("act" if chance >= 0.5 else "watch", name, text, stop.then)


def _passes(values: Array, stop: StopCondition) -> Flags:
    if stop.above is not None:
        return np.asarray(values > stop.above)
    assert stop.below is not None, stop
    return np.asarray(values < stop.below)


def _gain_alarm(gain: Estimate, name: str, stop: StopCondition) -> Iterator[Alarm]:
    """`act` if the whole interval is beyond the limit, `watch` if only the estimate is."""
    low, high = (end if end is not None else gain.value for end in (gain.low, gain.high))
    if not _passes(np.array([gain.value]), stop).all():
        return
    is_whole = bool(_passes(np.array([low, high]), stop).all()) and gain.low is not None
    seen = f"seen: {gain.value:+.2f} points, {low:+.2f} to {high:+.2f}"
    yield Alarm("act" if is_whole else "watch", name, f"{stop.title} ({seen}): then {stop.then}.", stop.then)


def unwatched(found: ProgramEstimate) -> list[StopCondition]:
    """Return the stop conditions on quantities that neither the forecast nor a known decision has."""
    known = {"device_hours", "decision_day", "failure_share"} | ({"gain"} if found.gain is not None else set())
    return [stop for stop in found.program.stops.values() if stop.watch not in known]


def _stage_alarms(found: ProgramEstimate) -> Iterator[Alarm]:
    for stage in found.stages:
        limit = stage.limit or OVER_SHARE * stage.planned
        if stage.planned and stage.middle > limit:
            planned = f", {OVER_SHARE:.0%} of the {stage.planned:,.0f} that were planned"
            heading = f"{found.program.stages[stage.name].title} is heading for {stage.middle:,.0f} device-hours"
            above = f"above its limit of {limit:,.0f}" if stage.limit else f"above {limit:,.0f}{planned}"
            yield Alarm("act" if stage.limit else "watch", stage.name, f"{heading}, {above}.")


def _activity_alarms(found: ProgramEstimate) -> Iterator[Alarm]:
    nodes, items = found.program.nodes(), {item.name: item for item in found.plan.items}
    for name, actual in found.progress.activities.items():
        if (planned := items.get(name)) is None:
            continue
        if actual.ended is None and found.now_h > planned.end_h + LATE_HOURS:
            late = (found.now_h - planned.end_h) / 24.0
            text = f"'{nodes[name].title}' goes on, {late:.1f} days past its planned end."
            yield Alarm("watch", name, text)
        hours = planned.device_hours()
        if hours and (held := found.in_progress[name].spent) > OVER_SHARE * hours:
            spent = f"'{nodes[name].title}' has spent {held:,.0f} device-hours"
            yield Alarm("watch", name, f"{spent}; planned were {hours:,}.")


def _waiting_alarms(found: ProgramEstimate) -> Iterator[Alarm]:
    for item in overdue_starts(found):
        title, late_h = found.program.nodes()[item.name].title, found.now_h - item.start_h
        yield Alarm("watch", item.name, f"'{title}' could have begun; it was planned {late_h / 24:.1f} days ago.")


def overdue_starts(found: ProgramEstimate) -> Iterator[Planned]:
    """Yield unstarted activities that could have started, and were planned to."""
    progress, nodes = found.progress, found.program.nodes()
    over = {name for name, actual in progress.activities.items() if actual.ended is not None}
    over |= set(progress.events) | set(progress.verdicts)
    dropped = called_off(found.program, progress)
    if any("stop" in verdicts for verdicts in progress.verdicts.values()):
        return
    for item in found.plan.items:
        is_due = found.now_h - item.start_h > LATE_HOURS
        is_open = item.name not in {*progress.activities, *progress.verdicts, *dropped}
        if is_due and is_open and {dependency.name for dependency in nodes[item.name].after} <= over | dropped:
            yield item


def budget_by_day(
    found: ProgramEstimate, spends: Sequence[Spend], *, num_days: int
) -> tuple[list[float], list[tuple[float, float]]]:
    """Return the budget's remaining device-hours: planned after each day, and actual as (day, remaining).

    `spends` come from the ledger; spending that only the notes have is spread evenly over its time.
    """
    budget = found.program.budget.device_hours
    known = {spend.activity for spend in spends}
    all_spends = [
        *spends,
        *(_noted_spend(found, name, activity) for name, activity in found.in_progress.items() if name not in known),
    ]
    planned = []
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
    hours = [24.0 * day for day in range(num_days + 1) if 24.0 * day < found.now_h]
    actual = [(hour / 24.0, budget - _spent_until(all_spends, hour)) for hour in hours]
    return planned, [*actual, (found.now_h / 24.0, budget - found.spent)]


def remaining_by_day(found: ProgramEstimate, *, days: Sequence[float], shares: Sequence[float]) -> list[list[float]]:
    """Return quantiles of the remaining budget on future days."""
    budget = found.program.budget.device_hours
    left = [np.quantile(budget - _device_hours_until(found, 24.0 * day), shares).tolist() for day in days]
    return [list(column) for column in zip(*left, strict=True)]


def _device_hours_until(found: ProgramEstimate, hour: float) -> Array:
    """Return the device-hours until a future hour: activities in progress continue evenly until their end,
    others follow the simulation."""
    outcome, compiled = found.outcome, found.outcome.compiled
    start, finish, held = outcome.replay
    remaining = [index for index in range(len(compiled.items)) if index not in found.known]
    total = spent_until(outcome, np.full(len(outcome.device_hours), hour), remaining)
    for name, activity in found.in_progress.items():
        own = compiled.indices(name)
        ends = np.where(np.isnan(finish[own]), start[own] + held[own], finish[own])
        last = np.nan_to_num(ends, nan=found.now_h).max(axis=0)
        share = np.clip((hour - found.now_h) / np.maximum(last - found.now_h, 1e-9), 0.0, 1.0)
        total += activity.spent + (found.in_progress_device_hours[name] - activity.spent) * share
    return total


def _noted_spend(found: ProgramEstimate, name: str, activity: ActivityInProgress) -> Spend:
    """Return the spending that only the notes have."""
    until = min(float(activity.item.end_h), found.now_h) if activity.actual.ended is not None else found.now_h
    return Spend(name, float(activity.item.start_h), until, activity.spent)


def _spent_until(spends: Sequence[Spend], hour: float) -> float:
    total = 0.0
    for spend in spends:
        length = max(spend.end_h - spend.start_h, 1e-9)
        total += spend.device_hours * min(1.0, max(0.0, (hour - spend.start_h) / length))
    return total
