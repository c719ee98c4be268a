"""Simulates what-ifs and readings of a rule with the same samples as the unchanged plan."""

from collections.abc import Iterable
from typing import NamedTuple

from assay.planning.program.offer import Safety
from assay.planning.simulation.offer import baseline_of, safety_of
from assay.planning.simulation.outcome import Outcome, simulate_many
from assay.planning.what_if import WhatIfResult

QUESTION_SAMPLES = 16_384
"""Samples per what-if and reading; quantiles of the date vary by less than 1% between seeds."""


class SimulatedWhatIf(NamedTuple):
    """A what-if with its plan and its simulation."""

    result: WhatIfResult
    safety: Safety | None
    """None if infeasible."""
    device_hours_saved: float | None
    """Mean, relative to the first; negative if it costs more. None if one of them has no plan."""


def simulate_what_ifs(
    results: Iterable[WhatIfResult], *, num_samples: int = QUESTION_SAMPLES, seed: int = 0
) -> tuple[SimulatedWhatIf, ...]:
    """Simulate each result; the first is the baseline."""
    found: list[SimulatedWhatIf] = []
    base_h: float | None = None
    known: list[Outcome] = []
    for number, result in enumerate(results):
        if result.plan is None:
            found.append(SimulatedWhatIf(result, None, None))
            continue
        batch = [(result.program, baseline_of(result.plan))]
        (outcome,) = simulate_many(batch, num_samples=num_samples, seed=seed, known=known)
        known = [*known[:1], outcome]  # readings that come to the same stand side by side
        device_hours = float(outcome.device_hours.mean())
        base_h = device_hours if number == 0 else base_h
        saved = None if base_h is None else base_h - device_hours
        found.append(SimulatedWhatIf(result, safety_of(outcome), saved))
    return tuple(found)
