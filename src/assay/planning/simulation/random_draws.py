"""The luck of each world: how long things take, what goes wrong, what the pilot's effect truly is.

Every quantity is drawn along an axis of its own, named by what it belongs to ("replicate#3", "data_late"). So
two mitigations or two what-ifs are compared under the same luck, and what differs is their doing. A quantile
that lies between the worlds that stop and those that go on is only as firm as the share of those that stop;
so luck is not thrown but laid out evenly, in two layers:

    what gates say    many more worlds than are played, of which every k-th is taken in the order of the
                      verdicts: each path through the gates has its share to about 1 in 10,000
    everything else   a scrambled Sobol sequence (Owen 1998), in that same order: within each path, too, long
                      and short durations come in their proportions

    true gain ~ belief after the pilot and its reruns  -->  a gate's estimate = gain + luck of items and seeds
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
from assay.planning.simulation.campaign_gate import components_of, play_campaign
from assay.planning.simulation.compile import BOOKING, RISK, NetworkItem, Simulated
from assay.planning.simulation.network import Array, Flags
from assay.planning.simulation.replay import Draws
from assay.statistics.replication import posterior_after

_AXES = 512
"""Dimensions of the Sobol sequence. A name takes the axis of its hash, or the next free one, so that it keeps
its luck where others come and go; names beyond the last are drawn at random."""

MANY_PARTS = 1000
"""More parts than these are summed by their normal law."""

_GATE_AXES = 32
"""Dimensions of that of the few names that gates depend on."""

_CANDIDATES = 16
"""Worlds through the gates for each one that is played: a verdict costs little, a replay much."""

Verdicts = NDArray[np.str_]


class GateLuck(NamedTuple):
    """What one look of a gate finds, should the program get there."""

    verdict: Verdicts
    estimate: Array | None
    """The gain that it sees, in points; None where stated probabilities decide."""
    standard_error: Array | None

    def worlds(self, chosen: NDArray[np.intp]) -> "GateLuck":
        """Some of the worlds, by their places."""
        estimate = None if self.estimate is None else self.estimate[chosen]
        error = None if self.standard_error is None else self.standard_error[chosen]
        return GateLuck(self.verdict[chosen], estimate, error)


Gates = Mapping[str, tuple[GateLuck, ...]]
"""Gate -> its looks, the repeats included."""


class Luck(NamedTuple):
    """All that is drawn for each world."""

    draws: Draws
    gain: Float[np.ndarray, " world"]
    """The true effect, in points."""
    gates: Gates

    def worlds(self, chosen: NDArray[np.intp]) -> "Luck":
        """Some of the worlds, by their places."""
        return Luck(self.draws.worlds(chosen), self.gain[chosen], _worlds(self.gates, chosen))


@lru_cache(maxsize=4)  # of the gates and of everything else; those of few worlds are asked for in between
def _sobol_points(num_worlds: int, seed: int, num_axes: int) -> Float[np.ndarray, "axis world"]:
    from scipy.stats import qmc

    # Balanced in powers of two; any first part of it is nearly so.
    power = 1 << (num_worlds - 1).bit_length()
    scrambled = qmc.Sobol(num_axes, rng=np.random.default_rng(derive_key(seed, num_axes)))
    points = np.ascontiguousarray(scrambled.random(power)[:num_worlds].T)
    points.clip(2.0**-40, 1.0 - 2.0**-40, out=points)
    points.flags.writeable = False
    return points


class Drawing:
    """Numbers for `num_worlds` worlds; each name has an axis of its own."""

    def __init__(self, *, num_worlds: int, seed: int, num_axes: int = _AXES) -> None:
        self.num_worlds = num_worlds
        self._seed = seed
        self._num_axes = num_axes
        self._axis_of: dict[int, int] = {}
        self._taken: set[int] = set()

    def uniform(self, *name: str | int) -> Array:
        """Strictly between 0 and 1."""
        axis = self._axis(derive_key(*name))
        return self._stream(*name).random(self.num_worlds) if axis is None else self._points[axis]

    def normal(self, *name: str | int) -> Array:
        """Standard normal."""
        return np.asarray(ndtri(self.uniform(*name)))

    def triangular(self, values: Sequence[float], *name: str | int) -> Array:
        """Least, most likely, most; all equal is no luck at all."""
        least, likely, most = values
        return triangular_quantile(least, likely, most, self.uniform(*name))

    def poisson_sum(self, rate: float | Array, low: float, high: float, *name: str | int) -> Array:
        """The sum of as many uniform numbers in [low, high] as a Poisson of this mean asks for; at random."""
        stream = self._stream(*name)
        counts = stream.poisson(rate, self.num_worlds)
        if counts.max(initial=0) > MANY_PARTS:
            scatter = np.sqrt(counts / 12.0) * stream.standard_normal(self.num_worlds)
            return np.asarray(low * counts + (high - low) * (counts / 2.0 + scatter).clip(0.0, counts))
        parts = stream.random((int(counts.max(initial=0)), self.num_worlds))
        is_counted = np.arange(len(parts))[:, None] < counts
        return np.asarray(low * counts + (high - low) * (parts * is_counted).sum(axis=0))

    @property
    def _points(self) -> Float[np.ndarray, "axis world"]:
        return _sobol_points(self.num_worlds, self._seed, self._num_axes)

    def _axis(self, key: int) -> int | None:
        if key not in self._axis_of:
            if len(self._taken) == self._num_axes:
                return None
            axis = key % self._num_axes
            while axis in self._taken:
                axis = (axis + 1) % self._num_axes
            self._taken.add(axis)
            self._axis_of[key] = axis
        return self._axis_of[key]

    def _stream(self, *name: str | int) -> np.random.Generator:
        # SFC64 is NumPy's fastest, and 64 bits of key are enough for the few hundred streams of a program.
        return np.random.Generator(np.random.SFC64(derive_key(self._seed, *name)))


def triangular_quantile(least: float, likely: float, most: float, share: Array) -> Array:
    """The inverse of the triangular distribution's cumulative function."""
    width = most - least
    if width <= 0:
        return np.full_like(share, least)
    turn = (likely - least) / width
    rising = least + np.sqrt(share * width * (likely - least))
    falling = most - np.sqrt((1.0 - share) * width * (most - likely))
    return np.where(share < turn, rising, falling)


def draw_luck(simulated: Simulated, *, num_worlds: int, seed: int = 0) -> Luck:
    """Draw everything. Raises `ConfigError` where a gate reads an effect and no pilot says what to expect."""
    program, drawing = simulated.program, Drawing(num_worlds=num_worlds, seed=seed)
    shown = _shown(_asked(simulated, num_worlds=num_worlds, seed=seed))
    happened = {
        name: shown.lost[name] if name in shown.lost else drawing.uniform("risk", name) < risk.probability
        for name, risk in program.risks.items()
    }
    cut_start, cut_end = _cuts(simulated, drawing, happened)
    draws = Draws(
        duration_h=np.stack([_duration(program, item, drawing, happened) for item in simulated.items]),
        delay_h=_delays(simulated, drawing, happened),
        is_active=np.stack([shown.active[item.node, item.repeat] for item in simulated.items]),
        cut_start_h=cut_start,
        cut_end_h=cut_end,
        says_stop=says_stop(simulated, shown.gates, num_worlds=num_worlds),
    )
    return Luck(draws, shown.gain, shown.gates)


def p_pass(simulated: Simulated, gate: str, gain: float, *, num_worlds: int, seed: int = 0) -> float:
    """P(the first look of a gate passes), were the true gain so many points."""
    drawing = Drawing(num_worlds=num_worlds, seed=derive_key(seed, "if"), num_axes=_GATE_AXES)
    active = np.ones((len(simulated.items), num_worlds), bool)
    found = _look(simulated, gate, drawing, np.full(num_worlds, gain), active, 0, is_last=True)
    return float((found.verdict == "pass").mean())


def calm_luck(simulated: Simulated) -> Draws:
    """One program to which nothing happens, and whose gates all pass: the schedule as it was meant."""
    shape = (len(simulated.items), 1)
    cut_start, cut_end = simulated.planned_cuts()
    return Draws(
        duration_h=np.array([[item.planned_h] for item in simulated.items]),
        delay_h=np.zeros(shape),
        is_active=np.array([[item.repeat == 0] for item in simulated.items]),
        cut_start_h=cut_start,
        cut_end_h=cut_end,
        says_stop=np.zeros(shape, bool),
    )


# How long things take


def _duration(program: Program, item: NetworkItem, drawing: Drawing, happened: Mapping[str, Flags]) -> Array:
    if item.kind in ("event", "join"):
        return np.zeros(drawing.num_worlds)
    noise, name, hours = program.noise, item.name, item.planned_h
    scatter, risks = drawing.normal("duration", name), _risk_factor(program, item, drawing, happened)
    if item.kind in ("work", "gate"):
        return hours * (noise.work_factor * np.exp(noise.work_sigma * scatter)) * risks
    factor = np.exp(noise.run_sigma * scatter) * risks
    low, high = noise.rerun_fraction
    is_rerun = drawing.uniform("rerun", name) < noise.rerun_probability
    factor += is_rerun * (low + (high - low) * drawing.uniform("rerun fraction", name))
    rate = _interrupt_rate(program, drawing) * item.devices * hours
    return hours * factor + drawing.poisson_sum(rate, *noise.interrupt_loss_hours, "interrupts", name)


def _interrupt_rate(program: Program, drawing: Drawing) -> Array:
    """Per device-hour, the same for all runs of a program."""
    rate, shape = program.noise.interrupts_per_device_hour, program.noise.interrupts_known_from
    if shape is None:
        return np.full(drawing.num_worlds, rate)
    return np.asarray(rate * gammaincinv(shape, drawing.uniform("interrupt rate")) / shape)


def _risk_factor(program: Program, item: NetworkItem, drawing: Drawing, happened: Mapping[str, Flags]) -> Array:
    """By how much risks that have come true lengthen it; one draw for all that a risk touches."""
    factor = np.ones(drawing.num_worlds)
    names = {item.node, item.stage}
    for name, risk in program.risks.items():
        if isinstance(risk.effect, Longer) and names & set(risk.effect.what):
            longer = drawing.triangular(risk.effect.factor, "risk size", name)
            factor *= np.where(happened[name], longer, 1.0)
        elif isinstance(risk.effect, MoreWork) and item.kind == "run" and names & set(risk.effect.what):
            more = drawing.triangular(risk.effect.fraction, "risk size", name)
            factor *= 1.0 + happened[name] * more
    return factor


def _delays(simulated: Simulated, drawing: Drawing, happened: Mapping[str, Flags]) -> Array:
    delay_h = np.zeros((len(simulated.items), drawing.num_worlds))
    for name, risk in simulated.program.risks.items():
        if isinstance(risk.effect, Late):
            days = drawing.triangular(risk.effect.days, "risk size", name)
            for index in simulated.indices(risk.effect.what):
                if simulated.items[index].kind != "join":
                    delay_h[index] += happened[name] * 24.0 * days
    return delay_h


def _cuts(simulated: Simulated, drawing: Drawing, happened: Mapping[str, Flags]) -> tuple[Array, Array]:
    """When capacity is missing, in each world."""
    program, num_worlds = simulated.program, drawing.num_worlds
    start, end = (np.repeat(hours, num_worlds, axis=1) for hours in simulated.planned_cuts())
    last_h = float(program.calendar.hour_of(program.decision.by))
    for name, risk in program.risks.items():
        effect = risk.effect
        if not isinstance(effect, BookingOverruns | CapacityLost | Away):
            continue
        hours = happened[name] * (24.0 * drawing.triangular(effect.days, "risk size", name))
        if isinstance(effect, BookingOverruns):
            end[simulated.cuts_of(BOOKING + effect.booking)] += hours
        else:
            begin = last_h * drawing.uniform("risk day", name)
            start[simulated.cuts_of(RISK + name)], end[simulated.cuts_of(RISK + name)] = begin, begin + hours
    return start, end


# What the runs show


@dataclass(frozen=True)
class _Asked:
    """A question for what the runs show; programs that differ in nothing of it have one answer."""

    about: str
    """All that the answer depends on."""
    simulated: Simulated = field(compare=False)
    num_worlds: int
    seed: int


class _Shown(NamedTuple):
    """In each world, evenly taken from many more."""

    gain: Array
    gates: Gates
    active: Mapping[tuple[str, int], Flags]
    """(Activity or gate, repeat) -> where it is done."""
    lost: Mapping[str, Flags]
    """Risk that costs gain -> where it comes true."""


def _asked(simulated: Simulated, *, num_worlds: int, seed: int) -> _Asked:
    program = simulated.program
    costly = {name: risk for name, risk in program.risks.items() if isinstance(risk.effect, GainLost)}
    gates = [item.name for item in simulated.items if item.kind == "gate"]
    nodes = sorted((item.node, item.repeat, item.kind) for item in simulated.items)
    about = repr((program.pilot, program.benchmarks, program.gates, costly, gates, nodes))
    return _Asked(about, simulated, num_worlds, seed)


@lru_cache(maxsize=4)  # most lots of a tornado, a register or a search ask the same
def _shown(asked: _Asked) -> _Shown:
    simulated, num_worlds = asked.simulated, asked.num_worlds
    program = simulated.program
    count = _CANDIDATES * (1 << (num_worlds - 1).bit_length())
    drawing = Drawing(num_worlds=count, seed=derive_key(asked.seed, "gates"), num_axes=_GATE_AXES)
    lost = {
        name: drawing.uniform("risk", name) < risk.probability
        for name, risk in program.risks.items()
        if isinstance(risk.effect, GainLost)
    }
    gain = _true_gain(program, drawing, lost)
    gates, active = _walk_gates(simulated, drawing, gain)
    order = _by_path(simulated, gates, active, gain)
    offset = np.random.default_rng(derive_key(asked.seed, "offset")).random()
    taken = order[((np.arange(num_worlds) + offset) * (count / num_worlds)).astype(int)]
    return _Shown(
        gain[taken],
        _worlds(gates, taken),
        {(item.node, item.repeat): active[i, taken] for i, item in enumerate(simulated.items)},
        {name: flags[taken] for name, flags in lost.items()},
    )


def _worlds(gates: Gates, chosen: NDArray[np.intp]) -> Gates:
    return {name: tuple(look.worlds(chosen) for look in looks) for name, looks in gates.items()}


def looks_of(simulated: Simulated, gates: Gates) -> Iterator[tuple[int, GateLuck]]:
    """Every look of every gate, with its place in the network."""
    for name, looks in gates.items():
        yield from zip(simulated.indices(name), looks, strict=True)


def _by_path(simulated: Simulated, gates: Gates, active: Flags, gain: Array) -> NDArray[np.intp]:
    """Worlds sorted by what the first gate says, then the second, ...; by gain within a path.

    What comes after a stop, or was never asked, tells no paths apart.
    """
    ended = np.zeros(len(gain), bool)
    columns: list[NDArray[np.uint8]] = []
    for index, look in looks_of(simulated, gates):
        is_held = active[index] & ~ended
        columns.append(np.where(is_held, _initials(look.verdict), 0))
        ended |= is_held & (look.verdict == "stop")
    keys: list[NDArray[Any]] = [gain, *reversed(columns)]
    return np.lexsort(keys)


def _initials(verdict: Verdicts) -> NDArray[np.uint8]:
    """No two verdicts begin with the same letter, and numbers are sorted many times faster than words."""
    letters = np.ascontiguousarray(verdict).view(np.uint32).reshape(len(verdict), -1)
    return letters[:, 0].astype(np.uint8)


def _true_gain(program: Program, drawing: Drawing, happened: Mapping[str, Flags]) -> Array:
    if program.pilot is None:
        return np.full(drawing.num_worlds, np.nan)
    gain = quantile_of_belief(program.pilot, drawing.uniform("gain"))
    for name, risk in program.risks.items():
        if isinstance(risk.effect, GainLost):
            gain -= happened[name] * drawing.triangular(risk.effect.points, "risk size", name)
    return gain


def quantile_of_belief(pilot: Pilot, share: Array) -> Array:
    """Points of gain at quantiles of what is believed after the pilot and its reruns, none left out."""
    variance = (pilot.standard_error / POINTS) ** 2
    belief = posterior_after(
        [gain / POINTS for gain in pilot.gains],
        [variance] * len(pilot.gains),
        prior_sd=pilot.prior_sd / POINTS,
    )
    gains: Array = POINTS * np.interp(share, np.cumsum(belief.weights), belief.grid)
    return gains


def _walk_gates(simulated: Simulated, drawing: Drawing, gain: Array) -> tuple[Gates, Flags]:
    """Every gate's looks, in order; what narrows and repeats switch off and on."""
    program = simulated.program
    is_first = np.array([[item.repeat == 0] for item in simulated.items])
    active = np.repeat(is_first, drawing.num_worlds, axis=1)
    gates: dict[str, tuple[GateLuck, ...]] = {}
    in_order = [item.node for item in simulated.items if item.kind == "gate" and item.repeat == 0]
    for name in in_order:
        gate, places, looks = program.gates[name], simulated.indices(name), list[GateLuck]()
        is_narrow = np.zeros(drawing.num_worlds, bool)
        for repeat, place in enumerate(places):
            look = _look(simulated, name, drawing, gain, active, repeat, is_last=place == places[-1])
            looks.append(look)
            is_narrow |= active[place] & (look.verdict == "narrow")
            if place != places[-1]:
                active[simulated.asked_by(name, repeat + 1)] = active[place] & (look.verdict == "again")
        gates[name] = tuple(looks)
        for dropped in gate.narrow.drops:
            active[simulated.indices(dropped)] &= ~is_narrow
    return gates, active


def _look(
    simulated: Simulated,
    name: str,
    drawing: Drawing,
    gain: Array,
    active: Flags,
    repeat: int,
    *,
    is_last: bool,
) -> GateLuck:
    gate = simulated.program.gates[name]
    if gate.evidence is None:
        return GateLuck(_stated(gate, drawing.uniform("verdict", name, repeat), is_last=is_last), None, None)
    if simulated.program.pilot is None:
        raise ConfigError(
            f"gates.{name}.evidence reads a gain, but the program has no 'pilot' that says what to "
            "expect of it. "
            "Add pilot: {benchmark, gains, standard_error}, or give the gate 'probabilities' instead."
        )
    evidence = gate.evidence
    num_seeds = seeds_of(simulated, evidence.runs)
    luck = [drawing.normal("seeds", evidence.runs, look) for look in range(repeat + 1)]
    components = components_of(simulated.program, evidence.benchmark)
    seeds_sd = np.sqrt(components.seed / max(num_seeds, 1)) * POINTS
    items_sd = np.sqrt(components.item / simulated.program.benchmarks[evidence.benchmark].items) * POINTS
    estimate = gain + items_sd * drawing.normal("items", evidence.benchmark) + seeds_sd * np.mean(luck, axis=0)
    error = np.full(len(gain), np.hypot(items_sd, seeds_sd / np.sqrt(repeat + 1)))
    if evidence.rule is not None:
        scores = estimate + seeds_sd * np.sqrt(num_seeds) * _apart(drawing, evidence.runs, num_seeds)
        beside = (
            np.reshape([drawing.uniform(kind, name, each.benchmark) for each in asked], (len(asked), len(gain)))
            for kind, asked in (("guardrail", evidence.rule.guardrails), ("safety", evidence.rule.safety))
        )
        told = play_campaign(simulated.program, evidence, scores, *beside)
        verdict, estimate = told.verdict, told.estimate
    else:
        verdict = _by_thresholds(evidence, estimate, is_last=is_last)
    runs = simulated.indices(evidence.runs)
    if not num_seeds or not runs:
        verdict = np.full(len(gain), "narrow")
    elif not active[runs[0]].all():  # dropped where an earlier gate narrowed: nothing to judge by
        verdict = np.where(active[runs[0]], verdict, "narrow")
    return GateLuck(verdict, estimate, error)


def _by_thresholds(evidence: Evidence, estimate: Array, *, is_last: bool) -> Verdicts:
    between: Verdict = "narrow" if is_last else evidence.between
    pass_at, stop_below = evidence.thresholds
    return np.where(estimate >= pass_at, "pass", np.where(estimate < stop_below, "stop", between))


def _apart(drawing: Drawing, runs: str, num_seeds: int) -> Float[np.ndarray, "seed world"]:
    """How far each seed lies from the mean of them all, in standard deviations of one."""
    each = [drawing.normal("seed", runs, number) for number in range(num_seeds)]
    seeds = np.reshape(each, (num_seeds, drawing.num_worlds))
    return seeds - (seeds.mean(axis=0) if num_seeds else 0.0)


def _stated(gate: ProgramGate, share: Array, *, is_last: bool) -> Verdicts:
    verdicts = list(gate.probabilities)
    edges = np.cumsum([gate.probabilities[verdict] for verdict in verdicts])
    index = np.minimum(np.searchsorted(edges, share, side="right"), len(verdicts) - 1)
    names = ["narrow" if verdict == "again" and is_last else verdict for verdict in verdicts]
    return np.array(names)[index]


def says_stop(simulated: Simulated, gates: Gates, *, num_worlds: int) -> Flags:
    """Whether each look says stop; false for what is no gate."""
    found = np.zeros((len(simulated.items), num_worlds), bool)
    for index, look in looks_of(simulated, gates):
        found[index] = look.verdict == "stop"
    return found


def seeds_of(simulated: Simulated, activity: str) -> int:
    """Seeds of each arm: half of the activity's runs, or as the gate that reads them shares them out."""
    readers = (gate.evidence for gate in simulated.program.gates.values() if gate.evidence is not None)
    arms = next((reader.arms for reader in readers if reader.runs == activity), 2)
    return sum(i.node == activity and i.kind == "run" and not i.repeat for i in simulated.items) // arms
