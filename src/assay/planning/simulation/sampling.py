"""Random samples of a program: durations, risks, gate verdicts and the true gain.

Every quantity has its own axis, keyed by its name ("replicate#3", "data_late"). So two mitigations or what-ifs
are compared with the same samples, and differences are theirs. A quantile between samples that stop and samples
that continue is only as precise as the share of those that stop. So the samples are stratified, in two layers:

    gate verdicts       many more samples than are simulated, of which every k-th is used in the order of the
                        verdicts: each path through the gates has its share to about 1 in 10,000
    everything else     a scrambled Sobol sequence (Owen 1998) in the same order: durations are also stratified
                        within each path

    true gain ~ posterior after the pilot and its reruns  -->  a gate's estimate = gain + noise of items and seeds
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtri

from assay.base.errors import ConfigError
from assay.base.seeds import derive_key
from assay.base.shapes import Float
from assay.planning.program.campaign_rule import POINTS
from assay.planning.program.program import Program
from assay.planning.program.risk import (
    Away,
    BookingOverruns,
    CapacityLost,
    GainLost,
    Late,
    Longer,
    MoreWork,
    Pilot,
)
from assay.planning.program.work import Evidence, ProgramGate, Verdict
from assay.planning.simulation.campaign_gate import components_of, simulate_campaign
from assay.planning.simulation.compile import BOOKING, RISK, CompiledProgram, NetworkItem
from assay.planning.simulation.network import Array, Flags
from assay.planning.simulation.replay import ReplaySamples
from assay.statistics.replication import posterior_after

_AXES = 512
"""Dimensions of the Sobol sequence. A name uses the axis of its hash, or the next free one, so its samples do
not depend on other names. Names beyond the last axis use plain random numbers."""

MANY_PARTS = 1000
"""Sums of more parts use the normal approximation."""

_GATE_AXES = 32
"""Dimensions of the sequence for gates, which depend on few names."""

_CANDIDATES = 16
"""Gate paths sampled per simulated sample: a verdict is cheap, a replay is not."""

Verdicts = NDArray[np.str_]


class GateSamples(NamedTuple):
    """Verdict and estimate of one look of a gate, if the program reaches it."""

    verdict: Verdicts
    estimate: Array | None
    """Estimated gain in points; None if the verdict follows from stated probabilities."""
    standard_error: Array | None

    def select(self, chosen: NDArray[np.intp]) -> "GateSamples":
        estimate = None if self.estimate is None else self.estimate[chosen]
        error = None if self.standard_error is None else self.standard_error[chosen]
        return GateSamples(self.verdict[chosen], estimate, error)


Gates = Mapping[str, tuple[GateSamples, ...]]
"""Gate -> its looks, including repeats."""


class ProgramSamples(NamedTuple):
    """All random samples of a program."""

    replay_samples: ReplaySamples
    gain: Float[np.ndarray, " sample"]
    """The true effect, in points."""
    gates: Gates

    def select(self, chosen: NDArray[np.intp]) -> "ProgramSamples":
        return ProgramSamples(self.replay_samples.select(chosen), self.gain[chosen], _select(self.gates, chosen))


@lru_cache(maxsize=4)  # of the gates and of everything else; those of few samples are requested in between
def _sobol_points(num_samples: int, seed: int, num_axes: int) -> Float[np.ndarray, "axis sample"]:
    from scipy.stats import qmc

    # Balanced in powers of two; any first part of it is nearly so.
    power = 1 << (num_samples - 1).bit_length()
    scrambled = qmc.Sobol(num_axes, rng=np.random.default_rng(derive_key(seed, num_axes)))
    points = np.ascontiguousarray(scrambled.random(power)[:num_samples].T)
    points.clip(2.0**-40, 1.0 - 2.0**-40, out=points)
    points.flags.writeable = False
    return points


class QuasiRandom:
    """Quasi-random numbers for `num_samples` samples; each name has its own axis."""

    def __init__(self, *, num_samples: int, seed: int, num_axes: int = _AXES) -> None:
        self.num_samples = num_samples
        self._seed = seed
        self._num_axes = num_axes
        self._axis_of: dict[int, int] = {}
        self._used_axes: set[int] = set()

    def uniform(self, *name: str | int) -> Array:
        """Uniform, strictly between 0 and 1."""
        axis = self._axis(derive_key(*name))
        return self._stream(*name).random(self.num_samples) if axis is None else self._points[axis]

    def normal(self, *name: str | int) -> Array:
        return np.asarray(ndtri(self.uniform(*name)))

    def triangular(self, values: Sequence[float], *name: str | int) -> Array:
        """Triangular with (least, most likely, most); constant if all are equal."""
        least, likely, most = values
        return triangular_quantile(least, likely, most, self.uniform(*name))

    def poisson_sum(self, rate: float | Array, low: float, high: float, *name: str | int) -> Array:
        """A Poisson-distributed number of uniform values in [low, high], summed; plain random numbers."""
        stream = self._stream(*name)
        counts = stream.poisson(rate, self.num_samples)
        if counts.max(initial=0) > MANY_PARTS:
            scatter = np.sqrt(counts / 12.0) * stream.standard_normal(self.num_samples)
            return np.asarray(low * counts + (high - low) * (counts / 2.0 + scatter).clip(0.0, counts))
        parts = stream.random((int(counts.max(initial=0)), self.num_samples))
        is_counted = np.arange(len(parts))[:, None] < counts
        return np.asarray(low * counts + (high - low) * (parts * is_counted).sum(axis=0))

    @property
    def _points(self) -> Float[np.ndarray, "axis sample"]:
        return _sobol_points(self.num_samples, self._seed, self._num_axes)

    def _axis(self, key: int) -> int | None:
        if key not in self._axis_of:
            if len(self._used_axes) == self._num_axes:
                return None
            axis = key % self._num_axes
            while axis in self._used_axes:
                axis = (axis + 1) % self._num_axes
            self._used_axes.add(axis)
            self._axis_of[key] = axis
        return self._axis_of[key]

    def _stream(self, *name: str | int) -> np.random.Generator:
        # SFC64 is NumPy's fastest, and 64 bits of key are enough for the few hundred streams of a program.
        return np.random.Generator(np.random.SFC64(derive_key(self._seed, *name)))


def triangular_quantile(least: float, likely: float, most: float, share: Array) -> Array:
    """Return the quantile function of the triangular distribution."""
    width = most - least
    if width <= 0:
        return np.full_like(share, least)
    turn = (likely - least) / width
    rising = least + np.sqrt(share * width * (likely - least))
    falling = most - np.sqrt((1.0 - share) * width * (most - likely))
    return np.where(share < turn, rising, falling)


def sample_program(compiled: CompiledProgram, *, num_samples: int, seed: int = 0) -> ProgramSamples:
    """Sample everything. Raises `ConfigError` if a gate reads an effect and the program has no pilot."""
    program, sampler = compiled.program, QuasiRandom(num_samples=num_samples, seed=seed)
    gate_results = _gate_results(_gate_query(compiled, num_samples=num_samples, seed=seed))
    active_risks = {
        name: gate_results.lost[name] if name in gate_results.lost else sampler.uniform("risk", name) < risk.probability
        for name, risk in program.risks.items()
    }
    reduction_start, reduction_end = _reductions(compiled, sampler, active_risks)
    replay_samples = ReplaySamples(
        duration_h=np.stack([_duration(program, item, sampler, active_risks) for item in compiled.items]),
        delay_h=_delays(compiled, sampler, active_risks),
        is_active=np.stack([gate_results.active[item.node, item.repeat] for item in compiled.items]),
        reduction_start_h=reduction_start,
        reduction_end_h=reduction_end,
        is_stop=is_stop(compiled, gate_results.gates, num_samples=num_samples),
    )
    return ProgramSamples(replay_samples, gate_results.gain, gate_results.gates)


def baseline_replay_samples(compiled: CompiledProgram) -> ReplaySamples:
    """Return a single sample without risks and noise, in which all gates pass."""
    shape = (len(compiled.items), 1)
    reduction_start, reduction_end = compiled.planned_reductions()
    return ReplaySamples(
        duration_h=np.array([[item.planned_h] for item in compiled.items]),
        delay_h=np.zeros(shape),
        is_active=np.array([[item.repeat == 0] for item in compiled.items]),
        reduction_start_h=reduction_start,
        reduction_end_h=reduction_end,
        is_stop=np.zeros(shape, bool),
    )


# How long things take


def _duration(program: Program, item: NetworkItem, sampler: QuasiRandom, active_risks: Mapping[str, Flags]) -> Array:
    if item.kind in ("event", "join"):
        return np.zeros(sampler.num_samples)
    noise, name, hours = program.noise, item.name, item.planned_h
    scatter, risks = sampler.normal("duration", name), _risk_factor(program, item, sampler, active_risks)
    if item.kind in ("work", "gate"):
        return hours * (noise.work_factor * np.exp(noise.work_sigma * scatter)) * risks
    factor = np.exp(noise.run_sigma * scatter) * risks
    low, high = noise.rerun_fraction
    is_rerun = sampler.uniform("rerun", name) < noise.rerun_probability
    factor += is_rerun * (low + (high - low) * sampler.uniform("rerun fraction", name))
    rate = _interrupt_rate(program, sampler) * item.devices * hours
    return hours * factor + sampler.poisson_sum(rate, *noise.interrupt_loss_hours, "interrupts", name)


def _interrupt_rate(program: Program, sampler: QuasiRandom) -> Array:
    """Per device-hour, the same for all runs of a sample."""
    rate, shape = program.noise.interrupts_per_device_hour, program.noise.interrupts_known_from
    if shape is None:
        return np.full(sampler.num_samples, rate)
    return np.asarray(rate * gammaincinv(shape, sampler.uniform("interrupt rate")) / shape)


def _risk_factor(program: Program, item: NetworkItem, sampler: QuasiRandom, active_risks: Mapping[str, Flags]) -> Array:
    """Return the factor by which active risks lengthen an item; one value for everything that a risk
    affects."""
    factor = np.ones(sampler.num_samples)
    names = {item.node, item.stage}
    for name, risk in program.risks.items():
        if isinstance(risk.effect, Longer) and names & set(risk.effect.what):
            longer = sampler.triangular(risk.effect.factor, "risk size", name)
            factor *= np.where(active_risks[name], longer, 1.0)
        elif isinstance(risk.effect, MoreWork) and item.kind == "run" and names & set(risk.effect.what):
            more = sampler.triangular(risk.effect.fraction, "risk size", name)
            factor *= 1.0 + active_risks[name] * more
    return factor


def _delays(compiled: CompiledProgram, sampler: QuasiRandom, active_risks: Mapping[str, Flags]) -> Array:
    delay_h = np.zeros((len(compiled.items), sampler.num_samples))
    for name, risk in compiled.program.risks.items():
        if isinstance(risk.effect, Late):
            days = sampler.triangular(risk.effect.days, "risk size", name)
            for index in compiled.indices(risk.effect.what):
                if compiled.items[index].kind != "join":
                    delay_h[index] += active_risks[name] * 24.0 * days
    return delay_h


def _reductions(
    compiled: CompiledProgram, sampler: QuasiRandom, active_risks: Mapping[str, Flags]
) -> tuple[Array, Array]:
    """Return start and end of each capacity reduction, in each sample."""
    program, num_samples = compiled.program, sampler.num_samples
    start, end = (np.repeat(hours, num_samples, axis=1) for hours in compiled.planned_reductions())
    last_h = float(program.calendar.hour_of(program.decision.by))
    for name, risk in program.risks.items():
        effect = risk.effect
        if not isinstance(effect, BookingOverruns | CapacityLost | Away):
            continue
        hours = active_risks[name] * (24.0 * sampler.triangular(effect.days, "risk size", name))
        if isinstance(effect, BookingOverruns):
            end[compiled.reductions_of(BOOKING + effect.booking)] += hours
        else:
            begin = last_h * sampler.uniform("risk day", name)
            start[compiled.reductions_of(RISK + name)], end[compiled.reductions_of(RISK + name)] = (
                begin,
                begin + hours,
            )
    return start, end


# What the runs show


@dataclass(frozen=True)
class _GateQuery:
    """Cache key of the gates' samples: programs with equal `about` have equal samples."""

    about: str
    """Everything that the samples depend on."""
    compiled: CompiledProgram = field(compare=False)
    num_samples: int
    seed: int


class _GateResults(NamedTuple):
    """Stratified samples of gates and gain."""

    gain: Array
    gates: Gates
    active: Mapping[tuple[str, int], Flags]
    """(Activity or gate, repeat) -> whether it is done."""
    lost: Mapping[str, Flags]
    """Risk that reduces the gain -> whether it occurs."""


def _gate_query(compiled: CompiledProgram, *, num_samples: int, seed: int) -> _GateQuery:
    program = compiled.program
    costly = {name: risk for name, risk in program.risks.items() if isinstance(risk.effect, GainLost)}
    gates = [item.name for item in compiled.items if item.kind == "gate"]
    nodes = sorted((item.node, item.repeat, item.kind) for item in compiled.items)
    about = repr((program.pilot, program.benchmarks, program.gates, costly, gates, nodes))
    return _GateQuery(about, compiled, num_samples, seed)


@lru_cache(maxsize=4)  # most lots of a tornado, a register or a search ask the same
def _gate_results(query: _GateQuery) -> _GateResults:
    compiled, num_samples = query.compiled, query.num_samples
    program = compiled.program
    count = _CANDIDATES * (1 << (num_samples - 1).bit_length())
    sampler = QuasiRandom(num_samples=count, seed=derive_key(query.seed, "gates"), num_axes=_GATE_AXES)
    lost = {
        name: sampler.uniform("risk", name) < risk.probability
        for name, risk in program.risks.items()
        if isinstance(risk.effect, GainLost)
    }
    gain = _true_gain(program, sampler, lost)
    gates, active = _walk_gates(compiled, sampler, gain)
    order = _by_path(compiled, gates, active, gain)
    offset = np.random.default_rng(derive_key(query.seed, "offset")).random()
    chosen = order[((np.arange(num_samples) + offset) * (count / num_samples)).astype(int)]
    return _GateResults(
        gain[chosen],
        _select(gates, chosen),
        {(item.node, item.repeat): active[i, chosen] for i, item in enumerate(compiled.items)},
        {name: flags[chosen] for name, flags in lost.items()},
    )


def _select(gates: Gates, chosen: NDArray[np.intp]) -> Gates:
    return {name: tuple(look.select(chosen) for look in looks) for name, looks in gates.items()}


def looks_of(compiled: CompiledProgram, gates: Gates) -> Iterator[tuple[int, GateSamples]]:
    """Yield every look of every gate, with its index in the network."""
    for name, looks in gates.items():
        yield from zip(compiled.indices(name), looks, strict=True)


def _by_path(compiled: CompiledProgram, gates: Gates, active: Flags, gain: Array) -> NDArray[np.intp]:
    """Sort samples by the verdict of the first gate, then of the second, ..., and by gain within a path.

    Looks after a stop, or that are never reached, do not distinguish paths.
    """
    ended = np.zeros(len(gain), bool)
    columns: list[NDArray[np.uint8]] = []
    for index, look in looks_of(compiled, gates):
        is_held = active[index] & ~ended
        columns.append(np.where(is_held, _initials(look.verdict), 0))
        ended |= is_held & (look.verdict == "stop")
    keys: list[NDArray[Any]] = [gain, *reversed(columns)]
    return np.lexsort(keys)


def _initials(verdict: Verdicts) -> NDArray[np.uint8]:
    """Return the verdicts' first letters, which are distinct; numbers sort much faster than strings."""
    letters = np.ascontiguousarray(verdict).view(np.uint32).reshape(len(verdict), -1)
    return letters[:, 0].astype(np.uint8)


def _true_gain(program: Program, sampler: QuasiRandom, active_risks: Mapping[str, Flags]) -> Array:
    if program.pilot is None:
        return np.full(sampler.num_samples, np.nan)
    gain = quantile_of_belief(program.pilot, sampler.uniform("gain"))
    for name, risk in program.risks.items():
        if isinstance(risk.effect, GainLost):
            gain -= active_risks[name] * sampler.triangular(risk.effect.points, "risk size", name)
    return gain


def quantile_of_belief(pilot: Pilot, share: Array) -> Array:
    """Return quantiles of the posterior gain in points, after the pilot and all its reruns."""
    variance = (pilot.standard_error / POINTS) ** 2
    belief = posterior_after(
        [gain / POINTS for gain in pilot.gains],
        [variance] * len(pilot.gains),
        prior_sd=pilot.prior_sd / POINTS,
    )
    gains: Array = POINTS * np.interp(share, np.cumsum(belief.weights), belief.grid)
    return gains


def _walk_gates(compiled: CompiledProgram, sampler: QuasiRandom, gain: Array) -> tuple[Gates, Flags]:
    """Sample every gate's looks in order, and switch nodes on and off by their verdicts."""
    program = compiled.program
    is_first = np.array([[item.repeat == 0] for item in compiled.items])
    active = np.repeat(is_first, sampler.num_samples, axis=1)
    gates: dict[str, tuple[GateSamples, ...]] = {}
    in_order = [item.node for item in compiled.items if item.kind == "gate" and item.repeat == 0]
    for name in in_order:
        gate, positions, looks = program.gates[name], compiled.indices(name), list[GateSamples]()
        is_narrow = np.zeros(sampler.num_samples, bool)
        for repeat, position in enumerate(positions):
            look = _look(compiled, name, sampler, gain, active, repeat, is_last=position == positions[-1])
            looks.append(look)
            is_narrow |= active[position] & (look.verdict == "narrow")
            if position != positions[-1]:
                active[compiled.repeated_nodes(name, repeat + 1)] = active[position] & (look.verdict == "again")
        gates[name] = tuple(looks)
        for dropped in gate.narrow.drops:
            active[compiled.indices(dropped)] &= ~is_narrow
    return gates, active


def _look(
    compiled: CompiledProgram,
    name: str,
    sampler: QuasiRandom,
    gain: Array,
    active: Flags,
    repeat: int,
    *,
    is_last: bool,
) -> GateSamples:
    gate = compiled.program.gates[name]
    if gate.evidence is None:
        return GateSamples(_declared(gate, sampler.uniform("verdict", name, repeat), is_last=is_last), None, None)
    if compiled.program.pilot is None:
        raise ConfigError(
            f"gates.{name}.evidence reads a gain, but the program has no 'pilot' that says what to "
            "expect of it. "
            "Add pilot: {benchmark, gains, standard_error}, or give the gate 'probabilities' instead."
        )
    evidence = gate.evidence
    num_seeds = seeds_of(compiled, evidence.runs)
    seed_samples = [sampler.normal("seeds", evidence.runs, look) for look in range(repeat + 1)]
    components = components_of(compiled.program, evidence.benchmark)
    seeds_sd = np.sqrt(components.seed / max(num_seeds, 1)) * POINTS
    items_sd = np.sqrt(components.item / compiled.program.benchmarks[evidence.benchmark].items) * POINTS
    estimate = gain + items_sd * sampler.normal("items", evidence.benchmark) + seeds_sd * np.mean(seed_samples, axis=0)
    error = np.full(len(gain), np.hypot(items_sd, seeds_sd / np.sqrt(repeat + 1)))
    if evidence.rule is not None:
        scores = estimate + seeds_sd * np.sqrt(num_seeds) * _seed_deviations(sampler, evidence.runs, num_seeds)
        clause_samples = (
            np.reshape([sampler.uniform(kind, name, clause.benchmark) for clause in clauses], (len(clauses), len(gain)))
            for kind, clauses in (("guardrail", evidence.rule.guardrails), ("safety", evidence.rule.safety))
        )
        verdict, estimate = simulate_campaign(compiled.program, evidence, scores, *clause_samples)
    else:
        verdict = _by_thresholds(evidence, estimate, is_last=is_last)
    runs = compiled.indices(evidence.runs)
    if not num_seeds or not runs:
        verdict = np.full(len(gain), "narrow")
    elif not active[runs[0]].all():  # dropped where an earlier gate narrowed: nothing to judge by
        verdict = np.where(active[runs[0]], verdict, "narrow")
    return GateSamples(verdict, estimate, error)


def _by_thresholds(evidence: Evidence, estimate: Array, *, is_last: bool) -> Verdicts:
    between: Verdict = "narrow" if is_last else evidence.between
    pass_at, stop_below = evidence.thresholds
    return np.where(estimate >= pass_at, "pass", np.where(estimate < stop_below, "stop", between))


def _seed_deviations(sampler: QuasiRandom, runs: str, num_seeds: int) -> Float[np.ndarray, "seed sample"]:
    """Return each seed's deviation from the mean of the seeds, in standard deviations of one seed."""
    normal = [sampler.normal("seed", runs, number) for number in range(num_seeds)]
    seeds = np.reshape(normal, (num_seeds, sampler.num_samples))
    return seeds - (seeds.mean(axis=0) if num_seeds else 0.0)


def _declared(gate: ProgramGate, share: Array, *, is_last: bool) -> Verdicts:
    verdicts = list(gate.probabilities)
    edges = np.cumsum([gate.probabilities[verdict] for verdict in verdicts])
    index = np.minimum(np.searchsorted(edges, share, side="right"), len(verdicts) - 1)
    names = ["narrow" if verdict == "again" and is_last else verdict for verdict in verdicts]
    return np.array(names)[index]


def is_stop(compiled: CompiledProgram, gates: Gates, *, num_samples: int) -> Flags:
    """Return whether each look stops; False for nodes that are not gates."""
    found = np.zeros((len(compiled.items), num_samples), bool)
    for index, look in looks_of(compiled, gates):
        found[index] = look.verdict == "stop"
    return found


def seeds_of(compiled: CompiledProgram, activity: str) -> int:
    """Return the seeds of each arm: half of the activity's runs, or by the arms of the gate that reads them."""
    readers = (gate.evidence for gate in compiled.program.gates.values() if gate.evidence is not None)
    arms = next((reader.arms for reader in readers if reader.runs == activity), 2)
    return sum(i.node == activity and i.kind == "run" and not i.repeat for i in compiled.items) // arms
