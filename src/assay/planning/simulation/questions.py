"""What-ifs and readings of a rule, each solved anew and played under the same luck as the plan as it is."""

from collections.abc import Iterable
from typing import NamedTuple

from assay.planning.program.offer import Safety
from assay.planning.simulation.offer import baseline_of, safety_of
from assay.planning.simulation.outcome import Outcome, simulate_many
from assay.planning.what_if import WhatIfResult

QUESTION_SAMPLES = 16_384
"""Played for each what-if and reading: their quantiles of the date, too, are the same to 1% for each seed."""


class SimulatedWhatIf(NamedTuple):
    """A question about the world, with its answer when nothing happens and under the simulation."""

    result: WhatIfResult
    safety: Safety | None
    """None where nothing fits."""
    device_hours_saved: float | None
    """On average, against the first; negative where it costs more. None where one of them has no plan."""


def simulate_what_ifs(
    results: Iterable[WhatIfResult], *, num_samples: int = QUESTION_SAMPLES, seed: int = 0
) -> tuple[SimulatedWhatIf, ...]:
    """Play each; the first is what the others are held against."""
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
