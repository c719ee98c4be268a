"""Which outer optimizer a short pilot proposes, and when a run is too short for a momentum.

Outer momentum multiplies what the inner steps move, by rate / (1 - momentum) in the end. That helps where the inner
learning rate is low or the weights are trained already, and harms where they move fast, so only runs of the recipe
itself can tell (docs/outer.md).
"""

import math
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from assay.base.errors import ConfigError
from assay.training.outer.config import AverageConfig, NesterovConfig, OuterOptimizerConfig

AVERAGE = AverageConfig()
CANDIDATES: tuple[OuterOptimizerConfig, ...] = (
    AVERAGE,
    NesterovConfig(type="nesterov", rate=1.0, momentum=0.3),
    NesterovConfig(type="nesterov", rate=0.8, momentum=0.5),
    NesterovConfig(type="nesterov", rate=0.7, momentum=0.9),
)
"""Optimizers that a pilot compares; rate / (1 - momentum) is 1, 1.4, 1.6 and 7."""
MAX_FACTOR = 2.0
"""Largest rate / (1 - momentum) without a warning. On small models with random weights, 1.6 was about as good as
averaging, and 7 was worse than one cluster alone (docs/experiments.md).
"""


class PilotRun(NamedTuple):
    """A short run of the recipe with one outer optimizer."""

    optimizer: OuterOptimizerConfig
    losses: tuple[float, ...]
    """Held-out loss at the end, one a seed; all runs of a pilot have the same seeds in the same order."""


class OuterProposal(NamedTuple):
    """The outer optimizer for the whole run."""

    optimizer: OuterOptimizerConfig
    reason: str
    """A sentence with the figures."""


def propose(runs: Sequence[PilotRun]) -> OuterProposal:
    """Return the optimizer with the lowest mean loss if it beats averaging in every seed; else averaging.

    Raises `ConfigError` if no run averages, or if a loss is missing.
    """
    baseline = next((run for run in runs if run.optimizer == AVERAGE), None)
    if baseline is None or not baseline.losses:
        raise ConfigError("a pilot needs a finished run with outer.optimizer.type=average to compare with.")
    if wrong := next((run for run in runs if len(run.losses) != len(baseline.losses)), None):
        raise ConfigError(
            f"the pilot has {len(wrong.losses)} losses for {optimizer_text(wrong.optimizer)} and "
            f"{len(baseline.losses)} for averaging. Train all candidates with the same seeds."
        )
    better = [run for run in runs if _beats(run, baseline)]
    best = min(better, key=lambda run: mean(run.losses), default=baseline)
    seeds = f"{len(baseline.losses)} seed{'s' * (len(baseline.losses) > 1)}"
    average_text = f"averaging {mean(baseline.losses):.4f}"
    if best is baseline:
        others = [run for run in runs if run is not baseline and math.isfinite(mean(run.losses))]
        closest = min(others, key=lambda run: mean(run.losses), default=None)
        more = f", {optimizer_text(closest.optimizer)} {mean(closest.losses):.4f}" if closest else ""
        return OuterProposal(AVERAGE, f"no candidate beat averaging in every seed ({seeds}; {average_text}{more})")
    reason = f"it beat averaging in every seed ({seeds}; {mean(best.losses):.4f}, {average_text})"
    return OuterProposal(best.optimizer, reason)


def outer_warnings(optimizer: OuterOptimizerConfig, *, num_outer_steps: int) -> list[str]:
    """Return warnings about a momentum that too few outer steps remain for, or that multiplies changes far."""
    if not isinstance(optimizer, NesterovConfig):
        return []
    momentum, factor = f"outer.optimizer.momentum={optimizer.momentum:g}", optimizer.rate / (1 - optimizer.momentum)
    least, found = least_outer_steps(optimizer), []
    if num_outer_steps < least:
        found.append(
            f"{momentum}: {num_outer_steps} outer steps remain, and a momentum settles after about {least}, which is "
            "2 / (1 - momentum). Use outer.optimizer.type=average, a smaller momentum, or a smaller outer.every."
        )
    if factor > MAX_FACTOR:
        found.append(
            f"{momentum}, rate={optimizer.rate:g}: outer steps move the weights up to {factor:.2g} times as far as the "
            "clusters do. That costs loss unless the inner learning rate is too low or the weights are trained "
            "already. Compare it with averaging (assay train pilot), or use outer.optimizer.type=average."
        )
    return found


def least_outer_steps(optimizer: OuterOptimizerConfig) -> int:
    """Return the outer steps after which the momentum has settled: 0 for averaging."""
    # Under steady changes the momentum has 1 - momentum**n of its final size after n steps; here, 86% or more.
    return round(2 / (1 - optimizer.momentum)) if isinstance(optimizer, NesterovConfig) else 0


def optimizer_text(optimizer: OuterOptimizerConfig) -> str:
    """Return the optimizer with its settings, for a sentence."""
    if isinstance(optimizer, NesterovConfig):
        return f"Nesterov (rate {optimizer.rate:g}, momentum {optimizer.momentum:g})"
    return "averaging"


def _beats(run: PilotRun, baseline: PilotRun) -> bool:
    # A diverged run has a loss that is not finite, and NaN is not less than anything.
    return all(own < other for own, other in zip(run.losses, baseline.losses, strict=True))
