"""Simulated campaigns of one design, judged by the real rule at every checkpoint.

Scores are drawn per (seed, checkpoint, benchmark): the true gain, the benchmark's deviation from it, item noise (the
same items for every seed and checkpoint), seed noise (the same at all checkpoints of a seed) and checkpoint noise.
Seeds arrive gate by gate; each checkpoint before a gate is an unscheduled look. The first SCALE or STOP ends the
campaign, and so does a gate after which no other could decide. The naive rule sees the same scores: one seed, its best
checkpoint, its best benchmark, the items' error alone.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt
from scipy.stats import norm

from assay.base.config import FrozenConfig
from assay.statistics.campaign.look_power import power_of_looks
from assay.statistics.campaign.looks import LookPlan
from assay.statistics.campaign.rule import (
    CampaignEvidence,
    CampaignRule,
    forecast_of,
    judge,
    predictive_power,
    required_at_end,
)
from assay.statistics.effect import Effect
from assay.statistics.failure_rate import rate_lower, rate_upper
from assay.statistics.guardrail import MARGINS_PER_ERROR
from assay.statistics.power import VarianceComponents, components_from_discordance


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

    def guardrail_standard_error(self) -> float:
        """The largest that a guardrail may have."""
        return self.guardrail_margin / MARGINS_PER_ERROR

    def detectable_gain(self) -> float:
        """Smallest gain that the last gate scales with 80% probability, as `assay decide run --check` states it."""
        looks = power_of_looks(self.looks, self.rule, self.components(), num_items=self.num_items())
        return looks[-1].finds


FULL_GAIN_AFTER = 0.5
"""Share of a run after which the candidate's gain is full; it grows evenly until then."""


class CampaignTruth(NamedTuple):
    """What is true of every simulated campaign."""

    gain: float = 0.0
    """Of the composite, at the declared checkpoint; a share."""
    harm: float = 0.0
    """On the first guardrail."""
    failure_rate: float | None = None
    """Of the critical failure mode; None for the design's hoped one."""
    only_one_benchmark: bool = False
    """The whole gain is on the first benchmark."""


NO_EFFECT = CampaignTruth()


class CampaignOutcomes(NamedTuple):
    """How the campaigns ended, element by element."""

    recommendation: npt.NDArray[np.str_]
    """`scale`, `narrow` or `stop`."""
    num_seeds: npt.NDArray[np.int64]
    """Seed pairs that were run."""
    num_looks: npt.NDArray[np.int64]
    """Looks taken: checkpoints times gates where none ended it."""
    scaled_unscheduled: npt.NDArray[np.bool_]
    """SCALE was said at a look that no plan declared."""
    gain_seen: npt.NDArray[np.float64]
    """Mean difference at the look that ended it."""
    naive_claim_at: npt.NDArray[np.int64]
    """Checkpoint of the first seed (from 1) at which the naive rule first claims a gain; 0 where never."""

    def share(self, recommendation: str) -> float:
        """Share of the campaigns that ended so."""
        return float(np.mean(self.recommendation == recommendation))

    def naive_share(self) -> float:
        """Share that the naive rule would have scaled."""
        return float(np.mean(self.naive_claim_at > 0))


def simulate_campaigns(
    design: CampaignDesign,
    truth: CampaignTruth = NO_EFFECT,
    *,
    num_campaigns: int,
    rng: np.random.Generator,
) -> CampaignOutcomes:
    """Run `num_campaigns` campaigns. Memory: 8 bytes x campaigns x seeds x checkpoints x benchmarks, thrice."""
    scores = _scores(design, truth, num_campaigns, rng)
    needed, stops = _further_clauses(design, truth, num_campaigns, rng)
    recommendation = np.full(num_campaigns, "narrow")
    num_seeds = np.full(num_campaigns, design.looks.gate_seeds[-1])
    num_looks = np.full(num_campaigns, len(design.looks.gate_seeds) * design.num_checkpoints)
    unscheduled, gain_seen = np.zeros(num_campaigns, bool), np.full(num_campaigns, np.nan)
    is_open, number = np.ones(num_campaigns, bool), 0
    for gate_index, seeds in enumerate(design.looks.gate_seeds):
        for checkpoint in range(design.num_checkpoints):
            is_gate = checkpoint == design.num_checkpoints - 1
            number += not is_gate
            level = _level(design.looks, gate_index if is_gate else None, number)
            evidence = _evidence(design, scores[:, :seeds, checkpoint], level=level, is_gate=is_gate)
            found = judge(evidence._replace(also_needed=needed, also_stops=stops), design.rule)
            recommended = found.recommendation
            ends = is_open & ((recommended != "narrow") | found.is_inconclusive)
            recommendation[ends], num_seeds[ends] = recommended[ends], seeds
            num_looks[ends] = gate_index * design.num_checkpoints + checkpoint + 1
            unscheduled |= ends & (recommended == "scale") & (not is_gate)
            gain_seen = np.where(is_open, evidence.effect.mean, gain_seen)
            is_open &= ~ends
    return CampaignOutcomes(
        recommendation, num_seeds, num_looks, unscheduled, gain_seen, _naive_claim_at(design, scores)
    )


def _scores(
    design: CampaignDesign, truth: CampaignTruth, num_campaigns: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Mean differences [campaign, seed, checkpoint, benchmark]."""
    seeds, checkpoints = design.looks.gate_seeds[-1], design.num_checkpoints
    benchmarks = design.num_benchmarks
    pair = np.sqrt(2.0)  # a difference of two runs
    grown = np.minimum(1.0, np.arange(1, checkpoints + 1) / (FULL_GAIN_AFTER * checkpoints))
    gains = np.full(benchmarks, truth.gain)
    if truth.only_one_benchmark:
        gains = np.where(np.arange(benchmarks) == 0, benchmarks * truth.gain, 0.0)
    items_sd = np.sqrt(design.discordance / design.items_per_benchmark)
    scores: npt.NDArray[np.float64] = grown[:, None] * gains
    scores = scores + design.benchmark_sd * rng.normal(size=(num_campaigns, 1, 1, benchmarks))
    scores = scores + items_sd * rng.normal(size=(num_campaigns, 1, 1, benchmarks))
    scores = scores + pair * design.seed_sd * rng.normal(size=(num_campaigns, seeds, 1, 1))
    scores += pair * design.checkpoint_sd * rng.normal(size=(num_campaigns, seeds, checkpoints, 1))
    return scores


def _evidence(
    design: CampaignDesign, scores: npt.NDArray[np.float64], *, level: float, is_gate: bool
) -> CampaignEvidence:
    """What the rule sees of [campaign, seed, benchmark] scores at one checkpoint."""
    num_seeds, benchmarks = scores.shape[1:]
    by_seed, by_benchmark = scores.mean(axis=2), scores.mean(axis=1)
    mean = by_seed.mean(axis=1)
    effect = Effect(
        mean=mean,
        seed_variance=by_seed.var(axis=1, ddof=1) / num_seeds,
        item_variance=np.full(mean.shape, design.discordance / design.num_items()),
        residual_variance=np.zeros(mean.shape),
        seed_degrees=np.full(mean.shape, num_seeds - 1.0),
        item_degrees=design.num_items() - benchmarks,
    )
    end_seeds, end = design.looks.gate_seeds[-1], effect
    if num_seeds < end_seeds:
        end = forecast_of(effect, num_seeds=num_seeds, end_seeds=end_seeds, prior_sd=design.rule.prior_sd).end
    left_out = (benchmarks * mean[:, None] - by_benchmark) / max(benchmarks - 1, 1)
    evidence = CampaignEvidence(
        effect=effect,
        level=level,
        is_gate=is_gate,
        replication_variance=end.variance,
        least_without_one=left_out.min(axis=1) if benchmarks > 1 else mean,
        share_positive=(by_benchmark > 0.0).mean(axis=1),
    )
    if not is_gate:
        return evidence
    ahead = {
        "num_seeds": num_seeds,
        "end_seeds": end_seeds,
        "end_level": design.looks.gate_levels()[-1],
        "replication_variance": end.variance,
        "rule": design.rule,
    }
    return evidence._replace(
        predictive_power=predictive_power(effect, **ahead), required_at_end=required_at_end(effect, **ahead)
    )


def _level(looks: LookPlan, gate_index: int | None, number: int) -> float:
    """One-sided confidence of a gate, or of unscheduled look `number`."""
    return 1.0 - looks.unscheduled_spending(number) if gate_index is None else looks.gate_levels()[gate_index]


def _further_clauses(
    design: CampaignDesign, truth: CampaignTruth, num_campaigns: int, rng: np.random.Generator
) -> tuple[list[npt.NDArray[np.bool_]], list[npt.NDArray[np.bool_]]]:
    """Guardrails and one critical failure mode, each measured once: (needed to scale, enough to stop)."""
    error, margin = design.guardrail_standard_error(), design.guardrail_margin
    harms = np.where(np.arange(design.num_guardrails) == 0, truth.harm, 0.0)
    upper = harms + error * (rng.normal(size=(num_campaigns, design.num_guardrails)) + norm.ppf(0.95))
    worst = upper.max(axis=1, initial=-np.inf)
    rate = design.hoped_failure_rate if truth.failure_rate is None else truth.failure_rate
    failures = rng.binomial(design.safety_trials, rate, size=num_campaigns)
    highest, lowest = rate_upper(failures, design.safety_trials), rate_lower(failures, design.safety_trials)
    allowed = design.allowed_failure_rate
    return [worst < margin, highest <= allowed], [lowest > allowed]


def _naive_claim_at(design: CampaignDesign, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """One seed, any checkpoint, any benchmark, items' error only: the first gain significant at 95%."""
    items_sd = np.sqrt(design.discordance / design.items_per_benchmark)
    claims = scores[:, 0].max(axis=2) > norm.ppf(0.975) * items_sd
    return np.where(claims.any(axis=1), np.argmax(claims, axis=1) + 1, 0)
