"""Estimates how often runs are interrupted, from the ledger's attempts.

Interrupts are a Poisson process in device-hours: k of them in D device-hours turn a Gamma(a, b) prior of the
rate into Gamma(a + k, b + D). The prior has the program's declared rate as its mean and the weight of one
interrupt. The simulation samples one rate per program from the posterior, so an uncertain rate widens the
tails.

An interrupt costs the work rolled back, the stall before it was noticed, and the start of the next attempt.
The wait between attempts holds no device and is not counted.
"""

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
from scipy.stats import gamma

from assay.base.errors import ConfigError
from assay.planning.actuals import held_spans
from assay.planning.program.risk import Noise
from assay.records.failure_rates import FailureRates
from assay.records.goodput import Interruption
from assay.records.run import DRILL_PREFIX, Attempt, Run
from assay.store.ledger.goodput import goodput_of
from assay.store.ledger.ledger import Ledger

HOUR_S = 3600.0

PRIOR_INTERRUPTS = 1.0
"""Weight of the declared rate, in interrupts."""

MIN_LOSSES = 5
"""With fewer interrupts of known cost, the declared losses are used."""


def failure_rates(ledger: Ledger, noise: Noise, *, runs: str = "*") -> FailureRates:
    """Estimate the rates of runs whose ids match a pattern. Interrupts of drills are planned and count only
    if the pattern asks for drills (`drill-*`).

    Raises `ConfigError` if nothing matches, or if the program declares a rate of zero.
    """
    declared = noise.interrupts_per_device_hour
    if not declared:
        raise ConfigError(
            "noise.interrupts_per_device_hour is 0, and the ledger's rates need a stated one to start from. "
            "Leave the key out (the default is that of published clusters), or state a guess."
        )
    chosen = [
        run
        for run in ledger.runs()
        if fnmatchcase(run.run_id, runs) and (not run.is_drill or runs.startswith(DRILL_PREFIX))
    ]
    attempts = [a for run in chosen for a in ledger.attempts(run.run_id) if a.ended_s is not None]
    if not attempts:
        raise ConfigError(
            f"the ledger has no attempt that is over of a run like '{runs}'. 'assay runs' lists what it has."
        )
    interruptions = _unplanned(ledger, chosen)
    interrupted = {(interruption.run_id, interruption.attempt) for interruption in interruptions}
    outcomes = Counter(a.outcome for a in attempts if (a.run_id, a.attempt) in interrupted)
    hours = sum(_held_s(ledger, run.run_id) for run in chosen) / HOUR_S
    shape, scale = PRIOR_INTERRUPTS + outcomes.total(), 1.0 / (PRIOR_INTERRUPTS / declared + hours)
    low, high = np.asarray(gamma.ppf((0.05, 0.95), shape, scale=scale)).tolist()
    return FailureRates(
        runs=runs,
        num_runs=len({attempt.run_id for attempt in attempts}),
        num_attempts=len(attempts),
        device_hours=hours,
        by_outcome=dict(outcomes),
        stated_per_device_hour=declared,
        per_device_hour=shape * scale,
        low=low,
        high=high,
        shape=shape,
        loss_hours=_loss_hours(interruptions, attempts),
    )


def _held_s(ledger: Ledger, run_id: str) -> float:
    attempts = ledger.attempts(run_id)
    spans = held_spans(attempts, ledger.phase_seconds(run_id), now_s=0.0)
    return sum(held_s for attempt, (*_, held_s) in zip(attempts, spans, strict=True) if attempt.ended_s is not None)


def _unplanned(ledger: Ledger, runs: Sequence[Run]) -> list[Interruption]:
    """Return the interruptions that no fault plan caused."""
    planned = {
        (run.run_id, incident.attempt)
        for run in runs
        for incident in ledger.incidents(run.run_id)
        if incident.incident == "fault"
    }
    found = goodput_of(ledger, runs).interruptions
    return [interruption for interruption in found if (interruption.run_id, interruption.attempt) not in planned]


def _loss_hours(interruptions: Sequence[Interruption], attempts: Sequence[Attempt]) -> tuple[float, float] | None:
    size = {(attempt.run_id, attempt.attempt): attempt.world_size for attempt in attempts}
    losses = [
        interruption.cost_device_s() / size[interruption.run_id, interruption.attempt] / HOUR_S
        for interruption in interruptions
    ]
    if len(losses) < MIN_LOSSES:
        return None
    mean, half = float(np.mean(losses)), float(np.sqrt(3.0) * np.std(losses, ddof=1))
    return max(0.0, mean - half), mean + half
