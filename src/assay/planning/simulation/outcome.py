"""Results of a simulation: date, budget and verdict, each with its distribution."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.base.shapes import Float
from assay.base.units import sampled_percent_text
from assay.planning.program.offer import Quantiles, Safety, VerdictMeans
from assay.planning.program.program import Program
from assay.planning.simulation.compile import Baseline, CompiledProgram, compile_program
from assay.planning.simulation.network import Array, Flags, Network
from assay.planning.simulation.replay import Replay, ReplaySamples, concatenated, replay
from assay.planning.simulation.sampling import (
    ProgramSamples,
    Verdicts,
    baseline_replay_samples,
    looks_of,
    sample_program,
)

NUM_SAMPLES = 32_768
"""With this many, no quantile of the shipped case differs by 1% between seeds; a power of two, as Sobol
sequences need."""


@dataclass(frozen=True)
class Outcome:
    """All samples, simulated to their ends."""

    compiled: CompiledProgram
    samples: ProgramSamples
    replay: Replay
    decision_h: Float[np.ndarray, " sample"]
    """Hour of the decision."""
    device_hours: Float[np.ndarray, " sample"]
    verdict: Verdicts
    """`scale`, `narrow` or `stop`."""

    def is_on_time(self) -> Flags:
        return np.asarray(self.decision_h <= self.deadline_h())

    def is_over_budget(self) -> Flags:
        return np.asarray(self.device_hours > self.compiled.program.budget.device_hours)

    def p_on_time(self) -> float:
        return float(self.is_on_time().mean())

    def p_over_budget(self) -> float:
        return float(self.is_over_budget().mean())

    def probability_text(self, share: float) -> str:
        """Return a probability as text; never 0% or 100%, because a finite number of samples cannot show
        these."""
        return sampled_percent_text(share, len(self.verdict))

    def deadline_h(self) -> float:
        program = self.compiled.program
        return float(program.calendar.hour_of(program.decision.by))

    def shares(self) -> dict[str, float]:
        """Return verdict -> share of samples."""
        return {verdict: float((self.verdict == verdict).mean()) for verdict in ("scale", "narrow", "stop")}

    def gate_shares(self, gate: str) -> dict[str, float]:
        """Return the last verdict of a gate -> share of all samples; `not reached` if the program ended before."""
        items = zip(self.compiled.indices(gate), self.samples.gates[gate], strict=True)
        last = np.full(len(self.verdict), "not reached")
        for index, look in items:
            was_held = self.samples.replay_samples.is_active[index] & ~np.isnan(self.replay.finish_h[index])
            last = np.where(was_held, look.verdict, last)
        verdicts = ("pass", "narrow", "again", "stop", "not reached")
        return {verdict: float((last == verdict).mean()) for verdict in verdicts}

    def span_h(self, node: str) -> tuple[Array, Array]:
        """Return the start and the end of an activity, gate or event in the samples that complete it, without
        repeats; empty if none does."""
        indices = [index for index in self.compiled.indices(node) if not self.compiled.items[index].repeat]
        start, end = self.replay.start_h[indices].min(axis=0), self.replay.finish_h[indices].max(axis=0)
        is_complete = ~np.isnan(start) & ~np.isnan(end)
        return start[is_complete], end[is_complete]

    def decision_days(self, *shares: float) -> list[float]:
        """Return quantiles of the decision day, counted from the program's start."""
        return [float(hour) / 24.0 for hour in np.quantile(self.decision_h, shares)]

    def stage_device_hours(self) -> dict[str, Array]:
        """Return stage -> device-hours in each sample."""
        total = {stage: np.zeros(len(self.device_hours)) for stage in self.compiled.program.stages}
        for index, item in enumerate(self.compiled.items):
            if item.devices:
                total[item.stage] += item.devices * self.replay.held_h[index]
        return total


def simulate(
    program: Program,
    baseline: Baseline,
    *,
    num_samples: int = NUM_SAMPLES,
    seed: int = 0,
    keeps_calendar: bool = False,
) -> Outcome:
    """Simulate a scheduled program."""
    compiled = compile_program(program, baseline, keeps_calendar=keeps_calendar)
    return simulate_samples(compiled, sample_program(compiled, num_samples=num_samples, seed=seed))


def simulate_many(
    programs: Iterable[tuple[Program, Baseline]],
    *,
    num_samples: int,
    seed: int = 0,
    known: Sequence[Outcome] = (),
) -> Iterator[Outcome]:
    """Simulate many scheduled programs with the same samples; `known` are outcomes with these samples.

    Programs that differ only in their samples are replayed together. A sample that equals one of a known
    outcome is not replayed, so a changed risk replays only the samples that it changes.
    """
    batch: list[tuple[CompiledProgram, ProgramSamples]] = []
    for program, baseline in programs:
        compiled = compile_program(program, baseline)
        if batch and (len(batch) == _MAX_BATCH or not compiled.network.is_same(batch[0][0].network)):
            yield from _replay_batch(batch, known)
            batch = []
        batch.append((compiled, sample_program(compiled, num_samples=num_samples, seed=seed)))
    if batch:
        yield from _replay_batch(batch, known)


_MAX_BATCH = 8
"""Programs replayed together; bounded by memory."""


def _replay_batch(
    batch: Sequence[tuple[CompiledProgram, ProgramSamples]], known: Sequence[Outcome]
) -> Iterator[Outcome]:
    """Yield the outcomes of programs that share one network."""
    network, num_samples = batch[0][0].network, len(batch[0][1].gain)
    like = next((outcome for outcome in known if _is_same_case(outcome, network, num_samples)), None)
    all_samples = np.arange(num_samples)
    new = [
        all_samples if like is None else samples.replay_samples.differing_samples(like.samples.replay_samples)
        for _, samples in batch
    ]
    found = replay(
        network,
        concatenated(
            [samples.replay_samples.select(indices) for (_, samples), indices in zip(batch, new, strict=True)]
        ),
    )
    first = 0
    for (compiled, samples), indices in zip(batch, new, strict=True):
        own = Replay(*(rows[:, first : first + len(indices)] for rows in found))
        first += len(indices)
        if like is not None:
            own = _with_samples(like.replay, indices, own)
        yield _summed(compiled, samples, own)


def _is_same_case(known: Outcome, network: Network, num_samples: int) -> bool:
    return len(known.device_hours) == num_samples and known.compiled.network.is_same(network)


def _with_samples(known: Replay, indices: NDArray[np.intp], own: Replay) -> Replay:
    whole = Replay(*(rows.copy() for rows in known))
    for rows, part in zip(whole, own, strict=True):
        rows[:, indices] = part
    return whole


def simulate_samples(compiled: CompiledProgram, samples: ProgramSamples) -> Outcome:
    """Replay the samples and summarize them."""
    return _summed(compiled, samples, replay(compiled.network, samples.replay_samples))


def resimulate(known: Outcome, replay_samples: ReplaySamples) -> Outcome:
    """Simulate the same network with samples that partly differ from the known ones."""
    samples = known.samples._replace(replay_samples=replay_samples)
    indices = replay_samples.differing_samples(known.samples.replay_samples)
    own = replay(known.compiled.network, replay_samples.select(indices))
    return _summed(known.compiled, samples, _with_samples(known.replay, indices, own))


def _summed(compiled: CompiledProgram, samples: ProgramSamples, found: Replay) -> Outcome:
    stopped = _reached(compiled, samples, found, "stop")
    narrowed = _reached(compiled, samples, found, "narrow")
    return Outcome(
        compiled,
        samples,
        found,
        _decision_h(compiled, found),
        compiled.devices() @ found.held_h,
        np.where(stopped, "stop", np.where(narrowed, "narrow", "scale")),
    )


def baseline_replay(compiled: CompiledProgram) -> Replay:
    """Replay the schedule without any randomness; it is never later than the schedule itself."""
    return replay(compiled.network, baseline_replay_samples(compiled))


def _reached(compiled: CompiledProgram, samples: ProgramSamples, found: Replay, verdict: str) -> np.ndarray:
    has_verdict = np.zeros(found.finish_h.shape[1], bool)
    for index, look in looks_of(compiled, samples.gates):
        was_held = samples.replay_samples.is_active[index] & ~np.isnan(found.finish_h[index])
        has_verdict |= was_held & (look.verdict == verdict)
    return has_verdict


def _decision_h(compiled: CompiledProgram, found: Replay) -> Array:
    """Return the decision's end, or if a stop called it off, the end of the last activity."""
    decision = found.finish_h[compiled.network.decision]
    return np.asarray(np.where(np.isnan(decision), np.nanmax(found.finish_h, axis=0), decision))


def safety_of(outcome: Outcome) -> Safety:
    """Summarize a simulation as a record."""
    return Safety(
        num_programs=len(outcome.verdict),
        p_on_time=outcome.p_on_time(),
        p_over_budget=outcome.p_over_budget(),
        decision_day=_quantiles(outcome.decision_h / 24.0),
        device_hours=_quantiles(outcome.device_hours),
        verdicts=outcome.shares(),
        by_verdict=_by_verdict(outcome),
    )


def _quantiles(values: Array) -> Quantiles:
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return Quantiles(p10=low, p50=middle, p90=high)


def _by_verdict(outcome: Outcome) -> dict[str, VerdictMeans]:
    found = {}
    for verdict, share in outcome.shares().items():
        if share:
            chosen = outcome.verdict == verdict
            found[verdict] = VerdictMeans(
                decision_day=float(outcome.decision_h[chosen].mean()) / 24.0,
                device_hours=float(outcome.device_hours[chosen].mean()),
            )
    return found
