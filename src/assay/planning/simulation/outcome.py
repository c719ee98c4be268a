"""What the simulated worlds say together: the date, the budget, the verdict, each with its distribution."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.base.shapes import Float
from assay.base.units import sampled_percent_text
from assay.planning.program.program import Program
from assay.planning.simulation.compile import Baseline, Simulated, simulated
from assay.planning.simulation.network import Array, Flags, Network
from assay.planning.simulation.random_draws import Luck, Verdicts, calm_luck, draw_luck, looks_of
from assay.planning.simulation.replay import Draws, Replay, replay, together

NUM_WORLDS = 32_768
"""So many that no quantile of the shipped case differs by 1% between seeds; a power of two, in which luck is
laid out evenly."""


@dataclass(frozen=True)
class Outcome:
    """Many worlds, played to their ends."""

    simulated: Simulated
    luck: Luck
    replay: Replay
    decision_h: Float[np.ndarray, " world"]
    """Hour at which the decision stands."""
    device_hours: Float[np.ndarray, " world"]
    verdict: Verdicts
    """`scale`, `narrow` or `stop`."""

    def is_on_time(self) -> Flags:
        """Where the decision stands by its date."""
        return np.asarray(self.decision_h <= self.deadline_h())

    def is_over_budget(self) -> Flags:
        """Where more device-hours are spent than the budget has."""
        return np.asarray(self.device_hours > self.simulated.program.budget.device_hours)

    def p_on_time(self) -> float:
        """P(the decision stands by its date)."""
        return float(self.is_on_time().mean())

    def p_over_budget(self) -> float:
        """P(more device-hours than the budget)."""
        return float(self.is_over_budget().mean())

    def chance_text(self, share: float) -> str:
        """A chance that these worlds show; never 0% or 100%, which no number of worlds does."""
        return sampled_percent_text(share, len(self.verdict))

    def deadline_h(self) -> float:
        """Hour by which the decision must stand."""
        program = self.simulated.program
        return float(program.calendar.hour_of(program.decision.by))

    def shares(self) -> dict[str, float]:
        """Verdict -> how often."""
        return {each: float((self.verdict == each).mean()) for each in ("scale", "narrow", "stop")}

    def decision_days(self, *shares: float) -> list[float]:
        """Quantiles of the day of the decision, counted from the program's start."""
        return [float(each) / 24.0 for each in np.quantile(self.decision_h, shares)]

    def stage_device_hours(self) -> dict[str, Array]:
        """Stage -> device-hours in each world."""
        total = {stage: np.zeros(len(self.device_hours)) for stage in self.simulated.program.stages}
        for index, item in enumerate(self.simulated.items):
            if item.devices:
                total[item.stage] += item.devices * self.replay.held_h[index]
        return total


def simulate(
    program: Program,
    baseline: Baseline,
    *,
    num_worlds: int = NUM_WORLDS,
    seed: int = 0,
    keeps_calendar: bool = False,
) -> Outcome:
    """Play a scheduled program many times."""
    compiled = simulated(program, baseline, keeps_calendar=keeps_calendar)
    return play(compiled, draw_luck(compiled, num_worlds=num_worlds, seed=seed))


def simulate_each(
    played: Iterable[tuple[Program, Baseline]],
    *,
    num_worlds: int,
    seed: int = 0,
    known: Sequence[Outcome] = (),
) -> Iterator[Outcome]:
    """Play many scheduled programs under the same luck; `known` are outcomes under that luck.

    Programs that differ in their luck alone are replayed together, and a world whose luck is that of a known
    one is not replayed: only those are that a change of a risk changes.
    """
    lots: list[tuple[Simulated, Luck]] = []
    for program, baseline in played:
        compiled = simulated(program, baseline)
        if lots and (len(lots) == _LOTS_AT_ONCE or not compiled.network.is_same(lots[0][0].network)):
            yield from _play_lots(lots, known)
            lots = []
        lots.append((compiled, draw_luck(compiled, num_worlds=num_worlds, seed=seed)))
    if lots:
        yield from _play_lots(lots, known)


_LOTS_AT_ONCE = 8
"""Programs that are replayed together: memory bounds it."""


def _play_lots(lots: Sequence[tuple[Simulated, Luck]], known: Sequence[Outcome]) -> Iterator[Outcome]:
    """Outcomes of lots that are of one network all."""
    network, num_worlds = lots[0][0].network, len(lots[0][1].gain)
    like = next((each for each in known if _is_like(each, network, num_worlds)), None)
    everyone = np.arange(num_worlds)
    new = [everyone if like is None else luck.draws.apart_from(like.luck.draws) for _, luck in lots]
    found = replay(
        network, together([luck.draws.worlds(worlds) for (_, luck), worlds in zip(lots, new, strict=True)])
    )
    first = 0
    for (compiled, luck), worlds in zip(lots, new, strict=True):
        own = Replay(*(each[:, first : first + len(worlds)] for each in found))
        first += len(worlds)
        if like is not None:
            own = _among(like.replay, worlds, own)
        yield _summed(compiled, luck, own)


def _is_like(known: Outcome, network: Network, num_worlds: int) -> bool:
    return len(known.device_hours) == num_worlds and known.simulated.network.is_same(network)


def _among(known: Replay, worlds: NDArray[np.intp], own: Replay) -> Replay:
    """A replay in which some worlds are others."""
    whole = Replay(*(each.copy() for each in known))
    for each, part in zip(whole, own, strict=True):
        each[:, worlds] = part
    return whole


def play(compiled: Simulated, luck: Luck) -> Outcome:
    """Replay these draws and sum them up."""
    return _summed(compiled, luck, replay(compiled.network, luck.draws))


def play_otherwise(known: Outcome, draws: Draws) -> Outcome:
    """The same network under draws that differ from the known ones in some worlds."""
    luck = known.luck._replace(draws=draws)
    worlds = draws.apart_from(known.luck.draws)
    own = replay(known.simulated.network, draws.worlds(worlds))
    return _summed(known.simulated, luck, _among(known.replay, worlds, own))


def _summed(compiled: Simulated, luck: Luck, found: Replay) -> Outcome:
    stopped = _reached(compiled, luck, found, "stop")
    narrowed = _reached(compiled, luck, found, "narrow")
    return Outcome(
        compiled,
        luck,
        found,
        _decision_h(compiled, found),
        compiled.devices() @ found.held_h,
        np.where(stopped, "stop", np.where(narrowed, "narrow", "scale")),
    )


def calm_replay(compiled: Simulated) -> Replay:
    """The schedule as the policy plays it when nothing happens: not later than the schedule itself."""
    return replay(compiled.network, calm_luck(compiled))


def _reached(compiled: Simulated, luck: Luck, found: Replay, verdict: str) -> np.ndarray:
    """Worlds in which some gate that was held said this."""
    said = np.zeros(found.finish_h.shape[1], bool)
    for index, look in looks_of(compiled, luck.gates):
        was_held = luck.draws.is_active[index] & ~np.isnan(found.finish_h[index])
        said |= was_held & (look.verdict == verdict)
    return said


def _decision_h(compiled: Simulated, found: Replay) -> Array:
    """The decision's end; where a stop called it off, the end of the last thing that was done."""
    decision = found.finish_h[compiled.network.decision]
    return np.asarray(np.where(np.isnan(decision), np.nanmax(found.finish_h, axis=0), decision))
