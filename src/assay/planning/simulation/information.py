"""Value of information: what each stage teaches, what it costs, and what stopping early saves.

After a stage, the best decision is to scale if the expected gain given the evidence exceeds the smallest
worthwhile gain. The samples give three numbers: how often that decision is wrong, the expected gain that it
secures, and the device-hours saved because weak evidence ends the program early. Estimates and gain are
jointly normal apart from rare risks, so the expected gain is a linear regression over the samples.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from assay.planning.program.campaign_rule import POINTS
from assay.planning.program.offer import Safety
from assay.planning.program.program import Program
from assay.planning.program.work import Evidence
from assay.planning.simulation.campaign_gate import components_of, power_of_gate
from assay.planning.simulation.compile import Baseline, CompiledProgram, compile_program
from assay.planning.simulation.network import Array
from assay.planning.simulation.outcome import Outcome, resimulate, safety_of, simulate_many
from assay.planning.simulation.sampling import seeds_of

STOP_PROBABILITY = 0.2
"""A rung stops a candidate if the probability of a worthwhile gain is below this."""


class StageInformation(NamedTuple):
    """A gate; the first line is the state before any."""

    name: str
    title: str
    p_wrong: float | None
    """Probability that the better of scale and stop is wrong if decided here; None if the gate reads no
    effect."""
    points_secured: float | None
    """E[max(0, expected gain - least)], in points."""
    device_hours: float
    """Mean spending until the end of the gate, if it is reached."""
    p_stop: float
    """Probability that the program ends here."""
    p_stopped_wrongly: float
    """Probability that it ends here although the gain is worthwhile."""
    device_hours_saved: float
    """Mean saving over all samples."""
    days_saved: float


class GateSite(NamedTuple):
    """An activity that compares the candidate with its baseline, after which a gate could be placed."""

    activity: str
    title: str
    end_day: float
    """Mean end."""
    num_seeds: int
    standard_error: float
    """Standard error of its estimate, in points."""
    device_hours: float
    """Device-hours of its own runs."""
    p_wrong: float
    """With this rung and the prior only."""
    p_stop: float
    """Probability that its evidence alone stops."""
    device_hours_saved: float
    """Mean saving if the program stopped there."""
    p_stopped_wrongly: float

    def worth(self) -> float:
        """Return the device-hours saved minus its own."""
        return self.device_hours_saved - self.device_hours


class SeedCountOption(NamedTuple):
    """The last gate with a different number of seeds."""

    num_seeds: int
    """Seeds of each arm."""
    num_more: int
    """Relative to the program; negative: fewer."""
    standard_error: float
    """Standard error of the gate's estimate, in points."""
    power: float
    """Probability that the gate scales a gain worth having, without its guardrails."""
    p_wrong: float
    safety: Safety


def _last_evidence(compiled: CompiledProgram) -> tuple[str, Evidence] | None:
    gates = [item.node for item in compiled.items if item.kind == "gate" and not item.repeat]
    found = [(gate, evidence) for gate in gates if (evidence := compiled.program.gates[gate].evidence)]
    return found[-1] if found else None


def least_gain(outcome: Outcome) -> float:
    """Return the smallest worthwhile gain in points, from the last gate."""
    last = _last_evidence(outcome.compiled)
    return last[1].least_gain if last else 0.0


def stages_information(outcome: Outcome) -> list[StageInformation]:
    """Return one line before any stage, then one for each gate in order."""
    compiled, samples = outcome.compiled, outcome.samples
    program, least = compiled.program, least_gain(outcome)
    before = _decide_now(samples.gain, [], least)
    lines = [StageInformation("", "Before any run", *before, 0.0, 0.0, 0.0, 0.0, 0.0)]
    seen: list[Array] = []
    for name, looks in samples.gates.items():
        indices = compiled.indices(name)
        first, last = looks[0].estimate, looks[-1].estimate
        p_wrong, points = None, None
        if first is not None and last is not None:
            seen.append(np.where(samples.replay_samples.is_active[indices[-1]], last, first))
            p_wrong, points = _decide_now(samples.gain, seen, least)
        ends = outcome.replay.finish_h[indices]
        stopped = ((samples.replay_samples.is_stop & samples.replay_samples.is_active)[indices] & ~np.isnan(ends)).any(
            axis=0
        )
        lines.append(
            StageInformation(
                name,
                program.gates[name].title,
                p_wrong,
                points,
                _spent_by(outcome, np.nanmax(np.where(np.isnan(ends), -np.inf, ends), axis=0)),
                float(stopped.mean()),
                float((stopped & (samples.gain >= least)).mean()),
                *_saved_by_stopping(outcome, name),
            )
        )
    return lines


def ladder(outcome: Outcome) -> list[GateSite]:
    """Return every activity that repeats the pilot's comparison, in order of time, as if a gate followed it.

    A rung below full size is assumed to show the same gain; only records can tell otherwise
    (`assay.statistics.proxy`).
    """
    compiled = outcome.compiled
    program = compiled.program
    if program.pilot is None:
        return []
    evidence_activities = [gate.evidence.runs for gate in program.gates.values() if gate.evidence is not None]
    same = {change for name in evidence_activities for change in program.activities[name].changes}
    rungs = [
        _rung(outcome, name, program.pilot.benchmark)
        for name, activity in program.activities.items()
        if same & set(activity.changes) and activity.runs is not None and activity.runs.count >= 4
    ]
    return sorted(rungs, key=lambda rung: rung.end_day)


def seeds_table(
    program: Program,
    baseline: Baseline,
    seeds: Sequence[int] | None = None,
    *,
    num_samples: int,
    seed: int = 0,
    known: Safety | None = None,
) -> list[SeedCountOption]:
    """Simulate the last gate with different numbers of seeds per arm, including date and budget.

    By default from two fewer to two more than now, and the fewest that recognise half of the gains worth having.
    `known` is the program as it is, simulated with more samples: changes are added to it.
    """
    compiled = compile_program(program, baseline)
    last = _last_evidence(compiled)
    if last is None:
        return []
    gate, evidence = last
    now = seeds_of(compiled, evidence.runs)
    lines = []
    if seeds is None:
        enough = power_of_gate(program, gate, num_seeds=now).sufficient
        remedy = {enough.num_seeds} if enough is not None and enough.items_factor == 1 else set()
        seeds = sorted({*range(max(1, now - 2), now + 3), *remedy})
    counts = seeds
    key = f"activities.{evidence.runs}.runs.count"
    evaluated = ((program.changed({key: evidence.arms * count}), baseline) for count in counts)
    outcomes = simulate_many(evaluated, num_samples=num_samples, seed=seed)
    for num_seeds, outcome in zip(counts, outcomes, strict=True):
        look = outcome.samples.gates[gate][0]
        assert look.estimate is not None and look.standard_error is not None
        p_wrong, _ = _decide_now(outcome.samples.gain, [look.estimate], evidence.least_gain)
        lines.append(
            SeedCountOption(
                num_seeds,
                num_seeds - now,
                float(look.standard_error[0]),
                power_of_gate(program, gate, num_seeds=num_seeds).look.scales,
                p_wrong,
                safety_of(outcome),
            )
        )
    base = next((line.safety for line in lines if line.num_more == 0), None)
    if known is None or base is None:
        return lines
    return [line._replace(safety=line.safety.anchored(base, known)) for line in lines]


def _decide_now(gain: Array, estimates: Sequence[Array], least: float) -> tuple[float, float]:
    """Return (P(wrong), points secured) of the best decision given the estimates."""
    columns = np.stack([np.ones_like(gain), *estimates], axis=1)
    weights, *_ = np.linalg.lstsq(columns, gain, rcond=None)
    expected = columns @ weights
    p_wrong = float(((expected >= least) != (gain >= least)).mean())
    return p_wrong, float(np.maximum(0.0, expected - least).mean())


def _saved_by_stopping(outcome: Outcome, gate: str) -> tuple[float, float]:
    """Return the mean (device-hours, days) that the same samples would cost more if this gate could not
    stop."""
    replay_samples = outcome.samples.replay_samples
    is_stop = replay_samples.is_stop.copy()
    is_stop[outcome.compiled.indices(gate)] = False
    going_on = resimulate(outcome, replace(replay_samples, is_stop=is_stop))
    hours = float((going_on.device_hours - outcome.device_hours).mean())
    return hours, float((going_on.decision_h - outcome.decision_h).mean()) / 24.0


def _spent_by(outcome: Outcome, moment_h: Array) -> float:
    """Return the mean device-hours until a moment of each sample (minus infinity: never reached)."""
    reached = np.isfinite(moment_h)
    return float(spent_until(outcome, moment_h)[reached].mean()) if reached.any() else 0.0


def spent_until(outcome: Outcome, moment_h: Array, nodes: Collection[int] | None = None) -> Array:
    """Return each sample's device-hours until a moment, optionally of some nodes only; a run spends evenly
    from start to end."""
    spent = np.zeros(len(outcome.device_hours))
    start, finish, held = outcome.replay
    for index, item in enumerate(outcome.compiled.items):
        if item.devices and (nodes is None or index in nodes):
            # A run that was called off has no end; what it held, it held without a break.
            end = np.where(np.isnan(finish[index]), start[index] + held[index], finish[index])
            share = (moment_h - start[index]) / np.maximum(end - start[index], 1e-9)
            spent += item.devices * held[index] * np.nan_to_num(np.clip(share, 0.0, 1.0))
    return spent


def _rung(outcome: Outcome, name: str, benchmark: str) -> GateSite:
    compiled, gain, least = outcome.compiled, outcome.samples.gain, least_gain(outcome)
    program = compiled.program
    num_seeds = seeds_of(compiled, name)
    components = components_of(program, benchmark)
    items = program.benchmarks[benchmark].items
    error = POINTS * components.standard_error(num_seeds=num_seeds, num_items=items)
    noise = np.random.default_rng(num_seeds).standard_normal(len(gain))
    estimate = gain + error * noise
    p_wrong, _ = _decide_now(gain, [estimate], least)
    prior_mean, prior_sd = float(gain.mean()), float(gain.std())
    weight = prior_sd**2 / (prior_sd**2 + error**2)
    expected = prior_mean + weight * (estimate - prior_mean)
    limit = NormalDist().inv_cdf(STOP_PROBABILITY) * prior_sd * float(np.sqrt(1.0 - weight))
    stops = expected - least < limit
    own = [index for index in compiled.indices(name) if not compiled.items[index].repeat]
    ends = outcome.replay.finish_h[own].max(axis=0)
    left = outcome.device_hours - spent_until(outcome, ends)
    reached = ~np.isnan(ends)
    hours = sum(compiled.items[index].devices * float(outcome.replay.held_h[index][reached].mean()) for index in own)
    return GateSite(
        name,
        program.activities[name].title,
        float(np.nanmean(ends)) / 24.0,
        num_seeds,
        error,
        hours,
        p_wrong,
        float(stops[reached].mean()),
        float(np.where(reached & stops, left, 0.0).mean()),
        float((stops & (gain >= least))[reached].mean()),
    )
