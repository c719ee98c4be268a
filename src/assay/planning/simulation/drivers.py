"""Sensitivity of date and budget: each driver alone at its best and worst value, with the same random
samples.

The register ranks risks by cost: how much P(on time and within budget) would rise without the risk, or with a
mitigation. The tornado shows how far each driver moves the date: a risk that never or certainly occurs, noise
that is absent or doubled.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from assay.base.errors import ConfigError
from assay.planning.program.offer import changed_share
from assay.planning.program.program import Program
from assay.planning.program.risk import Risk
from assay.planning.simulation.compile import Baseline
from assay.planning.simulation.network import Flags
from assay.planning.simulation.outcome import Outcome, simulate, simulate_many

DRIVER_SAMPLES = 2_048
"""Samples per end of each driver. Because the samples are shared, differences are more precise than levels."""

Schedule = Callable[[Program], Baseline]
"""Schedules a changed program."""


class ScenarioStats(NamedTuple):
    """Summary of a simulation."""

    p_on_time: float
    p_over_budget: float
    p_within_limits: float
    """P(on time and within budget)."""
    decision_day: float
    """Mean."""
    device_hours: float
    """Mean."""

    def anchored(self, base: "ScenarioStats", known: "ScenarioStats") -> "ScenarioStats":
        """Return `known` plus the change from `base`, as `Safety.anchored` does."""
        shares = (changed_share(*values) for values in zip(self[:3], base[:3], known[:3], strict=True))
        means = (at + own - from_ for own, from_, at in zip(self[3:], base[3:], known[3:], strict=True))
        return ScenarioStats(*shares, *means)


class Driver(NamedTuple):
    """One bar of the tornado."""

    name: str
    title: str
    low: ScenarioStats
    low_text: str
    """Label of the best value: `never`, `none`."""
    high: ScenarioStats
    high_text: str

    def swing(self) -> float:
        """Return how far it moves P(on time) and P(over budget) together."""
        on_time = abs(self.high.p_on_time - self.low.p_on_time)
        return on_time + abs(self.high.p_over_budget - self.low.p_over_budget)


class MitigationResult(NamedTuple):
    """The simulation with one mitigation."""

    name: str
    title: str
    after: ScenarioStats


class RegisterLine(NamedTuple):
    """A risk and its cost."""

    name: str
    risk: Risk
    now: ScenarioStats
    without: ScenarioStats
    """If the risk never occurs."""
    mitigations: tuple[MitigationResult, ...]

    def cost(self) -> float:
        """Return the loss of P(on time and within budget) by the risk."""
        return self.without.p_within_limits - self.now.p_within_limits


def scenario_stats(outcome: Outcome, selected: Flags | slice = np.s_[:]) -> ScenarioStats:
    """Summarize a simulation, or some of its samples."""
    is_on_time, is_over = outcome.is_on_time()[selected], outcome.is_over_budget()[selected]
    return ScenarioStats(
        float(is_on_time.mean()),
        float(is_over.mean()),
        float((is_on_time & ~is_over).mean()),
        float(outcome.decision_h[selected].mean()) / 24.0,
        float(outcome.device_hours[selected].mean()),
    )


def tornado(
    program: Program,
    baseline: Baseline,
    *,
    num_samples: int = DRIVER_SAMPLES,
    seed: int = 0,
    known: Outcome | None = None,
) -> list[Driver]:
    """Return all drivers, strongest first. `known` is the plan simulated with more samples: changes are added to it."""
    now, ends = simulate(program, baseline, num_samples=num_samples, seed=seed), list(_ends(program))
    changes = [change for _, _, low, _, high, _ in ends for change in (low, high)]
    programs = ((program.changed(change), baseline) for change in changes)
    base, anchor = scenario_stats(now), scenario_stats(known or now)
    outcomes = simulate_many(programs, num_samples=num_samples, seed=seed, known=[now])
    found = (scenario_stats(outcome).anchored(base, anchor) for outcome in outcomes)
    drivers = [
        Driver(name, title, next(found), low_text, next(found), high_text)
        for name, title, _, low_text, _, high_text in ends
    ]
    if program.pilot is not None:
        drivers.append(_gain_driver(known or now))
    return sorted(drivers, key=lambda driver: -driver.swing())


def register(
    program: Program, schedule: Schedule, *, num_samples: int = DRIVER_SAMPLES, seed: int = 0
) -> list[RegisterLine]:
    """Return the risks, most expensive first, each with its mitigations simulated.

    A mitigation may change the work, so `schedule` schedules each one. Raises `ConfigError` if one does not
    fit the program.
    """
    outcome = simulate(program, schedule(program), num_samples=num_samples, seed=seed)
    now = scenario_stats(outcome)
    without = [program.changed({f"risks.{name}.probability": 0.0}) for name in program.risks]
    mitigated = [
        _mitigated(program, name, mitigation_name, mitigation.changes)
        for name, risk in program.risks.items()
        for mitigation_name, mitigation in risk.mitigations.items()
    ]
    programs = ((changed, schedule(changed)) for changed in (*without, *mitigated))
    found = map(scenario_stats, simulate_many(programs, num_samples=num_samples, seed=seed, known=[outcome]))
    without_it = {name: next(found) for name in program.risks}
    lines = [
        RegisterLine(
            name,
            risk,
            now,
            without_it[name],
            tuple(
                MitigationResult(mitigation_name, mitigation.title, next(found))
                for mitigation_name, mitigation in risk.mitigations.items()
            ),
        )
        for name, risk in program.risks.items()
    ]
    return sorted(lines, key=lambda line: (-line.cost(), line.now.device_hours - line.without.device_hours))


def _mitigated(program: Program, risk: str, name: str, changes: Mapping[str, Any]) -> Program:
    try:
        return program.changed(changes)
    except (KeyError, ValidationError) as error:
        raise ConfigError(f"risks.{risk}.mitigations.{name}: its changes do not fit: {error}") from error


_Ends = tuple[str, str, dict[str, Any], str, dict[str, Any], str]


def _ends(program: Program) -> Iterator[_Ends]:
    for name, risk in program.risks.items():
        key = f"risks.{name}.probability"
        yield name, risk.title, {key: 0.0}, "never", {key: 1.0}, "certain"
    noise = program.noise
    drift = abs(noise.work_factor - 1.0) or 0.1
    yield (
        "work_factor",
        "People's work takes longer than planned",
        {"noise.work_factor": 1.0},
        "as planned",
        {"noise.work_factor": 1.0 + 2 * drift},
        f"{200 * drift:.0f}% longer",
    )
    for name, title, value in (
        ("work_sigma", "Scatter of people's work", noise.work_sigma),
        ("run_sigma", "Scatter of runs", noise.run_sigma),
        ("interrupts_per_device_hour", "Interrupts of runs", noise.interrupts_per_device_hour),
        ("rerun_probability", "Runs that must be repeated", noise.rerun_probability),
    ):
        if value:
            high = min(1.0, 2 * value) if name == "rerun_probability" else 2 * value
            yield name, title, {f"noise.{name}": 0.0}, "none", {f"noise.{name}": high}, "doubled"


def _gain_driver(outcome: Outcome) -> Driver:
    """Compare the samples with the highest and the lowest fifth of true gains."""
    low, high = np.quantile(outcome.samples.gain, (0.2, 0.8))
    return Driver(
        "gain",
        "The true gain",
        scenario_stats(outcome, outcome.samples.gain <= low),
        f"below {low:+.1f} points",
        scenario_stats(outcome, outcome.samples.gain >= high),
        f"above {high:+.1f} points",
    )
