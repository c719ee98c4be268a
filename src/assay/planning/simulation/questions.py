"""Simulates what-ifs and readings of a rule with the same samples as the unchanged plan."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from assay.planning.program.offer import Safety
from assay.planning.simulation.offer import baseline_of
from assay.planning.simulation.outcome import Outcome, safety_of, simulate_many
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
    error: float = 0.0
    """Largest standard error of the change of a probability, relative to the first."""


def simulate_what_ifs(
    results: Iterable[WhatIfResult],
    *,
    num_samples: int = QUESTION_SAMPLES,
    seed: int = 0,
    known: Safety | None = None,
) -> tuple[SimulatedWhatIf, ...]:
    """Simulate each result; the first is the baseline. `known` is the baseline simulated with more samples: changes
    are added to it, so that the baseline has its figures."""
    found: list[SimulatedWhatIf] = []
    base: Outcome | None = None
    outcomes: list[Outcome] = []
    for number, result in enumerate(results):
        if result.plan is None:
            found.append(SimulatedWhatIf(result, None, None))
            continue
        batch = [(result.program, baseline_of(result.plan))]
        (outcome,) = simulate_many(batch, num_samples=num_samples, seed=seed, known=outcomes)
        outcomes = [*outcomes[:1], outcome]  # readings that come to the same stand side by side
        base = outcome if number == 0 else base
        if base is None:
            found.append(SimulatedWhatIf(result, safety_of(outcome), None))
            continue
        safety = safety_of(outcome)
        if known is not None:
            safety = safety.anchored(safety_of(base), known)
        saved = float(base.device_hours.mean()) - float(outcome.device_hours.mean())
        found.append(SimulatedWhatIf(result, safety, saved, _error_of_change(base, outcome)))
    return tuple(found)


def _error_of_change(base: Outcome, changed: Outcome) -> float:
    pairs = [(base.is_on_time(), changed.is_on_time()), (base.is_over_budget(), changed.is_over_budget())]
    pairs += [(base.verdict == verdict, changed.verdict == verdict) for verdict in base.shares()]
    deviations = (float(np.std(own.astype(float) - before)) for before, own in pairs)
    return max(deviations) / math.sqrt(len(base.verdict))
