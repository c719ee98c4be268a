"""What the simulated worlds say together: the date, the budget, the verdict, each with its distribution."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from assay.planning.program.program import Program
from assay.planning.risk.compile import Baseline, Simulated, simulated
from assay.planning.risk.luck import Luck, Verdicts, calm_luck, draw_luck, looks_of
from assay.planning.risk.network import Array, Flags
from assay.planning.risk.replay import Replay, replay

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


def play(compiled: Simulated, luck: Luck) -> Outcome:
    """Replay these draws and sum them up."""
    found = replay(compiled.network, luck.draws)
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
