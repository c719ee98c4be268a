"""What the simulated worlds say together: the date, the budget, the verdict, each with its distribution."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.base.shapes import Float
from assay.base.units import sampled_percent_text
from assay.planning.program.program import Program
from assay.planning.simulation.compile import Baseline, CompiledProgram, compile_program
from assay.planning.simulation.network import Array, Flags, Network
from assay.planning.simulation.random_draws import (
    ProgramSamples,
    Verdicts,
    baseline_replay_samples,
    looks_of,
    sample_program,
)
from assay.planning.simulation.replay import Replay, ReplaySamples, concatenated, replay

NUM_SAMPLES = 32_768
"""So many that no quantile of the shipped case differs by 1% between seeds; a power of two, in which luck is
laid out evenly."""


@dataclass(frozen=True)
class Outcome:
    """Many worlds, played to their ends."""

    compiled: CompiledProgram
    samples: ProgramSamples
    replay: Replay
    decision_h: Float[np.ndarray, " sample"]
    """Hour at which the decision stands."""
    device_hours: Float[np.ndarray, " sample"]
    verdict: Verdicts
    """`scale`, `narrow` or `stop`."""

    def is_on_time(self) -> Flags:
        """Where the decision stands by its date."""
        return np.asarray(self.decision_h <= self.deadline_h())

    def is_over_budget(self) -> Flags:
        """Where more device-hours are spent than the budget has."""
        return np.asarray(self.device_hours > self.compiled.program.budget.device_hours)

    def p_on_time(self) -> float:
        """P(the decision stands by its date)."""
        return float(self.is_on_time().mean())

    def p_over_budget(self) -> float:
        """P(more device-hours than the budget)."""
        return float(self.is_over_budget().mean())

    def probability_text(self, share: float) -> str:
        """A chance that these worlds show; never 0% or 100%, which no number of worlds does."""
        return sampled_percent_text(share, len(self.verdict))

    def deadline_h(self) -> float:
        """Hour by which the decision must stand."""
        program = self.compiled.program
        return float(program.calendar.hour_of(program.decision.by))

    def shares(self) -> dict[str, float]:
        """Verdict -> how often."""
        return {verdict: float((self.verdict == verdict).mean()) for verdict in ("scale", "narrow", "stop")}

    def decision_days(self, *shares: float) -> list[float]:
        """Quantiles of the day of the decision, counted from the program's start."""
        return [float(hour) / 24.0 for hour in np.quantile(self.decision_h, shares)]

    def stage_device_hours(self) -> dict[str, Array]:
        """Stage -> device-hours in each world."""
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
    """Play a scheduled program many times."""
    compiled = compile_program(program, baseline, keeps_calendar=keeps_calendar)
    return simulate_samples(compiled, sample_program(compiled, num_samples=num_samples, seed=seed))


def simulate_many(
    programs: Iterable[tuple[Program, Baseline]],
    *,
    num_samples: int,
    seed: int = 0,
    known: Sequence[Outcome] = (),
) -> Iterator[Outcome]:
    """Play many scheduled programs under the same luck; `known` are outcomes under that luck.

    Programs that differ in their luck alone are replayed together, and a world whose luck is that of a known
    one is not replayed: only those are that a change of a risk changes.
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
"""Programs that are replayed together: memory bounds it."""


def _replay_batch(
    batch: Sequence[tuple[CompiledProgram, ProgramSamples]], known: Sequence[Outcome]
) -> Iterator[Outcome]:
    """Outcomes of lots that are of one network all."""
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
    """A replay in which some worlds are others."""
    whole = Replay(*(rows.copy() for rows in known))
    for rows, part in zip(whole, own, strict=True):
        rows[:, indices] = part
    return whole


def simulate_samples(compiled: CompiledProgram, samples: ProgramSamples) -> Outcome:
    """Replay these draws and sum them up."""
    return _summed(compiled, samples, replay(compiled.network, samples.replay_samples))


def resimulate(known: Outcome, replay_samples: ReplaySamples) -> Outcome:
    """The same network under draws that differ from the known ones in some worlds."""
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
    """The schedule as the policy plays it when nothing happens: not later than the schedule itself."""
    return replay(compiled.network, baseline_replay_samples(compiled))


def _reached(compiled: CompiledProgram, samples: ProgramSamples, found: Replay, verdict: str) -> np.ndarray:
    """Worlds in which some gate that was held said this."""
    has_verdict = np.zeros(found.finish_h.shape[1], bool)
    for index, look in looks_of(compiled, samples.gates):
        was_held = samples.replay_samples.is_active[index] & ~np.isnan(found.finish_h[index])
        has_verdict |= was_held & (look.verdict == verdict)
    return has_verdict


def _decision_h(compiled: CompiledProgram, found: Replay) -> Array:
    """The decision's end; where a stop called it off, the end of the last thing that was done."""
    decision = found.finish_h[compiled.network.decision]
    return np.asarray(np.where(np.isnan(decision), np.nanmax(found.finish_h, axis=0), decision))
