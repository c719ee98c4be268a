"""What a campaign will be, in the numbers that decide its power; and that power, before anything runs.

The stated power is a lower bound. SCALE at the last gate needs the gain to be large enough there, no gate
before it to have stopped, and every other clause to hold; the chances of each going wrong are added, as if
they never coincided:

    power >= P(gain passes at the last gate) - P(futile at a gate) - P(one benchmark carries it)
             - P(a guardrail fails) - P(safety fails)

Early SCALEs come on top. `campaign_simulation` runs the campaign that this page describes, and the benchmark
holds it to the power stated here.
"""

import math

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt
from scipy.special import ndtr
from scipy.stats import binom, norm

from assay.base.config import FrozenConfig
from assay.statistics.campaign.looks import LookPlan
from assay.statistics.campaign.rule import (
    CampaignRule,
    bounds_of_look,
    least_scaling_effect,
)
from assay.statistics.effect import Effect
from assay.statistics.failure_rate import rate_upper
from assay.statistics.guardrail import MARGINS_PER_ERROR
from assay.statistics.power import VarianceComponents, components_from_discordance, variance_scatter

_POINTS = 64


class CampaignDesign(FrozenConfig):
    """Seeds, items and noise of a campaign. Scores are shares: 0.01 is one point."""

    looks: LookPlan = LookPlan()
    """Gates with their seeds, and the error rate that all looks share."""
    rule: CampaignRule = CampaignRule()
    """When to scale and when to stop."""
    num_benchmarks: PositiveInt = 4
    """Benchmarks whose plain mean is the composite."""
    items_per_benchmark: PositiveInt = 2000
    """Items on each of them."""
    num_checkpoints: PositiveInt = 20
    """Checkpoints of each run that somebody may look at; the last is the declared one."""
    discordance: float = Field(default=0.20, gt=0.0, le=1.0)
    """Share of items on which candidate and baseline differ."""
    seed_sd: float = Field(default=0.01, ge=0.0)
    """Of one recipe's score over its seeds."""
    checkpoint_sd: float = Field(default=0.006, ge=0.0)
    """Of one run's score over neighbouring checkpoints."""
    benchmark_sd: float = Field(default=0.006, ge=0.0)
    """Of the true gain over benchmarks."""
    replication_seeds: PositiveInt = 5
    """Seed pairs of the replication whose success is predicted."""
    num_guardrails: int = Field(default=4, ge=0)
    """Benchmarks on which the candidate must not be worse, each sized as `guardrail` demands."""
    guardrail_margin: float = Field(default=0.015, gt=0.0)
    """How much worse is allowed there."""
    safety_trials: PositiveInt = 3000
    """Trials of the critical failure mode."""
    allowed_failure_rate: float = Field(default=0.005, gt=0.0, lt=1.0)
    """What its upper bound must not exceed."""
    hoped_failure_rate: float = Field(default=0.001, ge=0.0, lt=1.0)
    """The true rate of a sound candidate."""

    def components(self) -> VarianceComponents:
        """Of the composite's paired difference per item, with the declared checkpoint's noise in the seeds'."""
        run_sd = math.hypot(self.seed_sd, self.checkpoint_sd)
        return components_from_discordance(discordance=self.discordance, seed_sd=run_sd)

    def num_items(self) -> int:
        """Items behind the composite."""
        return self.num_benchmarks * self.items_per_benchmark

    def replication_variance(self) -> float:
        """Of the mean difference in a replication on the same items."""
        return self.components().variance(num_seeds=self.replication_seeds, num_items=self.num_items())

    def guardrail_standard_error(self) -> float:
        """The largest that a guardrail may have."""
        return self.guardrail_margin / MARGINS_PER_ERROR


def stated_power(design: CampaignDesign, effect: float) -> float:
    """P(SCALE) at least, if the composite's true gain is `effect`; see the module for the pieces."""
    losses = futility_probability(design, effect) + imbalance_probability(design, effect)
    losses += design.num_guardrails * _guardrail_loss(design) + _safety_loss(design)
    return max(0.0, gain_power(design, effect) - losses)


def detectable_effect(design: CampaignDesign, *, target_power: float = 0.80) -> float:
    """The smallest gain that the campaign scales with at least `target_power`; infinite where none is.

    It is infinite where the losses that no gain cures (guardrails, safety) exceed 1 - `target_power`.
    """
    low, high = 0.0, 0.5
    if stated_power(design, high) < target_power:
        return math.inf
    while high - low > 1e-5:
        middle = (low + high) / 2.0
        low, high = (low, middle) if stated_power(design, middle) >= target_power else (middle, high)
    return high


def gain_power(design: CampaignDesign, effect: float) -> float:
    """P(the gain meets its three clauses at the last gate)."""
    end = design.looks.gate_seeds[-1]
    seen = _expected(design, end)
    level = design.looks.gate_levels()[-1]
    needed = least_scaling_effect(seen, level, design.replication_variance(), design.rule)
    passes: npt.NDArray[np.float64] = ndtr((effect - needed) / _true_error(design, end))
    return float(passes.mean())


def futility_probability(design: CampaignDesign, effect: float) -> float:
    """P(some gate ends it: the gain too small, unlikely, or not to be shown by the last one), at most."""
    return sum(_stop_probability(design, index, effect) for index in range(len(design.looks.gate_seeds)))


def imbalance_probability(design: CampaignDesign, effect: float) -> float:
    """P(at the last gate the benchmarks disagree too much to scale), at most."""
    count, rule = design.num_benchmarks, design.rule
    if count == 1:
        return 0.0
    own_sd = math.sqrt(design.benchmark_sd**2 + design.discordance / design.items_per_benchmark)
    common_sd = math.sqrt(design.components().seed / design.looks.gate_seeds[-1])
    common = effect + common_sd * norm.ppf((np.arange(_POINTS) + 0.5) / _POINTS)
    most_negative = math.floor(count * (1.0 - rule.least_share_positive) + 1e-9)
    too_few = np.mean(binom.sf(most_negative, count, ndtr(-common / own_sd)))
    # Without benchmark j the composite is (count D - D_j) / (count - 1): too small where D_j > D times this.
    factor = count - rule.least_share_left * (count - 1)
    # D_j - factor D: what all have in common enters (1 - factor) times, and D_j's own noise is in D, too.
    mean = (1.0 - factor) * effect
    others = own_sd * math.sqrt((1.0 - factor / count) ** 2 + (count - 1) * (factor / count) ** 2)
    carried = count * ndtr(mean / math.hypot((1.0 - factor) * common_sd, others))
    return float(too_few + carried)


def _expected(design: CampaignDesign, num_seeds: int) -> Effect:
    """The effects that a gate may see: mean 0, and equally likely estimates of the variance."""
    return variance_scatter(design.components(), num_seeds=num_seeds, num_items=design.num_items())


def _stop_probability(design: CampaignDesign, gate_index: int, effect: float) -> float:
    """P(this gate ends it without a gain), by the rule's three clauses turned into a bound on the mean."""
    rule, gates = design.rule, design.looks.gate_seeds
    seen = _expected(design, gates[gate_index])
    levels = design.looks.gate_levels()
    bound = bounds_of_look(
        seen,
        num_seeds=gates[gate_index],
        level=levels[gate_index],
        end_seeds=gates[-1],
        end_level=levels[-1],
        replication_variance=design.replication_variance(),
        rule=rule,
    ).ends
    return float(ndtr((bound - effect) / _true_error(design, gates[gate_index])).mean())


def _true_error(design: CampaignDesign, num_seeds: int) -> float:
    """Standard error of the composite, with the scatter of the benchmarks' true gains around their mean."""
    noise = design.components().variance(num_seeds=num_seeds, num_items=design.num_items())
    return math.sqrt(noise + design.benchmark_sd**2 / design.num_benchmarks)


def _guardrail_loss(design: CampaignDesign) -> float:
    """P(one guardrail does not pass a harmless candidate)."""
    return 1.0 - _pass_probability(design.guardrail_standard_error(), design.guardrail_margin)


def _safety_loss(design: CampaignDesign) -> float:
    """P(the failure mode's upper bound exceeds what is allowed, at the hoped rate)."""
    failures = np.arange(design.safety_trials + 1)
    is_allowed = rate_upper(failures, design.safety_trials) <= design.allowed_failure_rate
    most = int(np.count_nonzero(is_allowed)) - 1
    return float(binom.sf(most, design.safety_trials, design.hoped_failure_rate))


def _pass_probability(standard_error: float, margin: float, *, harm: float = 0.0) -> float:
    """The chance that a guardrail of this standard error passes a candidate with this true harm."""
    return float(ndtr((margin - harm) / standard_error - norm.ppf(0.95)))
