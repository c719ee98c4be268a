"""The rule that recommends scale, narrow or stop, for real campaigns and for simulated ones.

    SCALE   all of:  the gain's lower bound at this look's level is above 0
                     P(true gain >= least_effect) >= 0.80, after shrinkage
                     P(a replication succeeds) >= 0.80
                     without any one benchmark, half the gain is left; 3 of 4 benchmarks gain
                     and every clause that the caller adds (guardrails, safety, coverage, extrapolation, plan)
    STOP    any of:  the gain's upper bound is below least_effect            } at gates only
                     P(true gain >= least_effect) < 0.20               *     }
                     before the last gate: P(SCALE by then) < 0.02     *     }
                     and every stop clause that the caller adds (harm shown, rollback)
                     * only if the design has power: its last gate would scale 2.5 times the least effect
    NARROW  otherwise; the failed clauses say what is missing

STOP wins over SCALE. Futility is judged at gates only: unscheduled looks may find harm, but giving up at one would cost
power that no plan accounts for. A design that would miss a clear gain learns little: an unlikely gain was unlikely
before, and a hopeless campaign may succeed with another design. Such a campaign ends to save seeds, but without an
answer: `is_inconclusive`. All clauses are arithmetic on arrays, so that decisions and the simulation that validates
them (`benchmarks/campaign_simulation.py`) share one implementation.
"""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
from pydantic import Field
from scipy.special import ndtr, ndtri

from assay.base.config import FrozenConfig
from assay.base.shapes import Bool, Shaped
from assay.statistics.effect import Effect, Leading, Level
from assay.statistics.replication import PRIOR_SD, GainPosterior, gain_posterior

CLEAR_GAIN = 2.5
"""Multiple of the least effect that a design with power must scale at its last gate, if it observes that gain."""


class CampaignRule(FrozenConfig):
    """Thresholds of the rule, declared before the first run. Effects are in the score's unit."""

    least_effect: float = Field(default=0.015, gt=0.0)
    """The smallest gain worth scaling (SESOI): 1.5 points of accuracy."""
    prior_sd: float = Field(default=PRIOR_SD, gt=0.0)
    """Standard deviation of true effects among this lab's candidates, failures included; see
    `statistics/replication`."""
    least_probability: float = Field(default=0.80, gt=0.5, lt=1.0)
    """SCALE needs this posterior probability of at least `least_effect`."""
    stop_probability: float = Field(default=0.20, gt=0.0, lt=0.5)
    """STOP below this posterior probability of `least_effect`."""
    least_replication: float = Field(default=0.80, gt=0.5, lt=1.0)
    """SCALE needs this probability that the planned replication finds a gain."""
    replication_level: float = Field(default=0.95, gt=0.5, lt=1.0)
    """One-sided confidence of the planned replication's test."""
    futility_level: float = Field(default=0.90, gt=0.5, lt=1.0)
    """One-sided confidence of the upper bound that must reach `least_effect`."""
    least_predictive_power: float = Field(default=0.02, ge=0.0, lt=0.5)
    """The campaign ends if the probability of SCALE by the last gate is below this. At 0.10, a third of true gains of 3
    points would end at the first gate of the default design, to save a tenth of the seeds."""
    least_share_left: float = Field(default=0.5, gt=0.0, le=1.0)
    """Share of the composite gain that must remain without any one benchmark."""
    least_share_positive: float = Field(default=0.75, gt=0.0, le=1.0)
    """Share of benchmarks on which the candidate must be better."""

    def posterior(self, effect: Effect) -> GainPosterior:
        """Return the posterior of the true gain under the rule's prior."""
        return gain_posterior(effect.variance, effect.degrees, prior_sd=self.prior_sd)


Flags = Bool[np.ndarray, "*#leading"]


class Criterion(NamedTuple):
    """One condition with its value and limit, element by element."""

    name: str
    value: Leading
    limit: Leading
    is_met: Flags


class CampaignEvidence(NamedTuple):
    """The input of the rule; arrays broadcast against the effect's leading axes."""

    effect: Effect
    """Effect of the composite of benchmarks at the declared checkpoint."""
    level: Level
    """One-sided confidence that this look needs (`looks`)."""
    is_gate: bool | Flags
    """Whether this look was declared; futility is judged at gates only."""
    replication_variance: float | Leading
    """Variance of the mean difference in the planned replication."""
    least_without_one: float | Leading
    """Smallest composite with one benchmark left out (`composite.Breadth`)."""
    share_positive: float | Leading
    """Share of benchmarks with a gain."""
    predictive_power: float | Leading = 1.0
    """P(SCALE by the last gate), see `predictive_power`; 1 at the last gate."""
    required_at_end: float | Leading = 0.0
    """The gain that the last gate must observe to scale, see `required_at_end`."""
    also_needed: Sequence[bool | Flags] = ()
    """Whether each additional clause of SCALE holds: guardrails, safety, coverage, plan, budget."""
    also_stops: Sequence[bool | Flags] = ()
    """Whether each additional clause of STOP holds: a safety bound broken, a rollback."""


class RuleOutcome(NamedTuple):
    """The recommendation, and the rule's clauses with their numbers."""

    recommendation: Shaped[np.ndarray, "*leading"]
    """`scale`, `narrow` or `stop`, element by element."""
    scale_clauses: tuple[Criterion, ...]
    """SCALE needs all of them."""
    stop_clauses: tuple[Criterion, ...]
    """STOP needs one of them; without power, only the first counts."""
    has_power: Flags
    """Whether the last gate would scale a clear gain."""
    is_inconclusive: Flags
    """Whether NARROW is final: the design lacks power, and no later look would change it."""


def judge(evidence: CampaignEvidence, rule: CampaignRule) -> RuleOutcome:
    """Apply the rule of the module docstring."""
    needed, stops = _scale_clauses(evidence, rule), _stop_clauses(evidence, rule)
    too_small, unlikely, no_way = (clause.is_met for clause in stops)
    has_power = np.asarray(evidence.required_at_end) <= CLEAR_GAIN * rule.least_effect
    is_stop = reduce(np.logical_or, [too_small, (unlikely | no_way) & has_power, *evidence.also_stops])
    is_over = is_stop | no_way
    is_scale = reduce(np.logical_and, [*(clause.is_met for clause in needed), *evidence.also_needed, ~is_over])
    recommendation = np.where(is_stop, "stop", np.where(is_scale, "scale", "narrow"))
    return RuleOutcome(recommendation, needed, stops, has_power, is_over & ~is_stop)


def least_scaling_effect(
    effect: Effect, level: Level, replication_variance: float | Leading, rule: CampaignRule
) -> Leading:
    """Return the smallest mean difference that meets the three clauses on the gain, given an effect's variance.

    `level`: one-sided confidence of the look. Infinite if the variance is.
    """
    posterior = rule.posterior(effect)
    with np.errstate(invalid="ignore"):
        by_significance = effect.half_width(level)
        by_probability = posterior.least_mean(rule.least_effect, rule.least_probability)
        by_replication = posterior.least_mean(
            _found_from(replication_variance, rule), rule.least_replication, noise_variance=replication_variance
        )
    least = np.maximum(by_significance, np.maximum(by_probability, by_replication))
    return np.where(np.isfinite(effect.variance), least, np.inf)


def predictive_power(
    effect: Effect,
    *,
    num_seeds: int,
    end_seeds: int,
    end_level: float,
    replication_variance: float | Leading,
    rule: CampaignRule,
) -> Leading:
    """Return P(the gain meets SCALE at the last gate), given the data; same items, more seeds.

    The other clauses are taken as met, so this is an upper bound, and stopping on it is cautious. It is 1 with one
    seed.
    """
    if num_seeds >= end_seeds or num_seeds < 2:
        return np.ones(np.shape(effect.mean))
    forecast = forecast_of(effect, num_seeds=num_seeds, end_seeds=end_seeds, prior_sd=rule.prior_sd)
    needed = least_scaling_effect(forecast.end, end_level, replication_variance, rule)
    margin = forecast.slope * effect.mean - needed
    with np.errstate(divide="ignore", invalid="ignore"):
        probability: np.ndarray = ndtr(margin / forecast.sd)
    # If no seed differs from another, the standard deviation is 0 and the forecast is certain.
    return np.where(forecast.sd > 0, probability, margin >= 0)


def required_at_end(
    effect: Effect,
    *,
    num_seeds: int,
    end_seeds: int,
    end_level: float,
    replication_variance: float | Leading,
    rule: CampaignRule,
) -> Leading:
    """Return the smallest mean difference that the last gate will scale, with the variance expected there."""
    end = _with_seeds(effect, num_seeds, end_seeds)
    return least_scaling_effect(end, end_level, replication_variance, rule)


class Bounds(NamedTuple):
    """Thresholds on the mean difference observed at a look."""

    scales: Leading
    """Scaled at or above."""
    stops: Leading
    """Stopped below."""
    ends: Leading
    """Ended below, stopped or not: no later look would scale it. Between `ends` and `scales` the campaign continues."""


def bounds_of_look(
    seen: Effect,
    *,
    num_seeds: int,
    level: float,
    end_seeds: int,
    end_level: float,
    replication_variance: float | Leading,
    rule: CampaignRule,
) -> Bounds:
    """Solve the rule's clauses on the gain for the mean, given its variance; `end` is the last look."""
    scales = least_scaling_effect(seen, level, replication_variance, rule)
    stops = rule.least_effect - seen.half_width(rule.futility_level)
    unlikely = rule.posterior(seen).least_mean(rule.least_effect, rule.stop_probability)
    no_way, needed = np.full(np.shape(stops), -np.inf), scales
    if num_seeds < end_seeds:
        forecast = forecast_of(seen, num_seeds=num_seeds, end_seeds=end_seeds, prior_sd=rule.prior_sd)
        needed = least_scaling_effect(forecast.end, end_level, replication_variance, rule)
        no_way = (needed + ndtri(max(rule.least_predictive_power, 1e-12)) * forecast.sd) / forecast.slope
    has_power = needed <= CLEAR_GAIN * rule.least_effect
    stops = np.where(has_power, np.maximum(stops, np.maximum(unlikely, no_way)), stops)
    return Bounds(scales, np.minimum(stops, scales), np.minimum(np.maximum(stops, no_way), scales))


class OutcomeProbabilities(NamedTuple):
    """Probabilities of how a new campaign ends at its last gate."""

    to_scale: Leading
    to_decide: Leading
    """To scale, or to stop because the gain is too small or unlikely; otherwise it stays open."""


def new_campaign_outcomes(
    effect: Effect, *, num_seeds: int, new_seeds: int, level: float, rule: CampaignRule, items_factor: float = 1.0
) -> OutcomeProbabilities:
    """Return how a new campaign of `new_seeds` fresh seeds would end, on the same items or `items_factor` times as
    many.

    The present data do not count in it; they only predict the true gain, after shrinkage. Its planned replication is as
    large as the new campaign. The probabilities are 0 with one seed.
    """
    if num_seeds < 2 or new_seeds < 2:
        return OutcomeProbabilities(np.zeros(np.shape(effect.mean)), np.zeros(np.shape(effect.mean)))
    items = effect.items_alone / items_factor
    # Variance of what all seeds share, and the weight of the observed mean in predicting it.
    steady = rule.prior_sd**2 + items
    weight = steady / (rule.prior_sd**2 + effect.items_alone + effect.seed_variance)
    new_effect = _with_more_items(_with_seeds(effect, num_seeds, new_seeds), items_factor)
    bounds = bounds_of_look(
        new_effect,
        num_seeds=new_seeds,
        level=level,
        end_seeds=new_seeds,
        end_level=level,
        replication_variance=new_effect.variance,
        rule=rule,
    )
    expected = weight * effect.mean
    sd = np.maximum(np.sqrt(steady * (1.0 - weight) + new_effect.seed_variance), 1e-300)
    to_scale: np.ndarray = ndtr((expected - bounds.scales) / sd)
    to_stop: np.ndarray = ndtr((bounds.stops - expected) / sd)
    return OutcomeProbabilities(to_scale, to_scale + to_stop)


class ForecastAtEnd(NamedTuple):
    """Predicted mean difference at the last gate: normal around `slope` times today's, with `sd`."""

    slope: Leading
    sd: Leading
    end: Effect
    """Effect with today's mean and the variance expected then."""


def forecast_of(effect: Effect, *, num_seeds: int, end_seeds: int, prior_sd: float) -> ForecastAtEnd:
    """Predict the mean over `end_seeds` seeds from that over `num_seeds`, on the same items."""
    seen = num_seeds / end_seeds
    steady = prior_sd**2 + effect.items_alone
    weight = steady / (steady + effect.seed_variance)
    new_variance = steady * (1.0 - weight) + effect.seed_variance * num_seeds / (end_seeds - num_seeds)
    end = _with_seeds(effect, num_seeds, end_seeds)
    return ForecastAtEnd(seen + (1.0 - seen) * weight, (1.0 - seen) * np.sqrt(new_variance), end)


def _with_seeds(effect: Effect, num_seeds: int, other_seeds: int) -> Effect:
    """Return the effect with the variance expected for another number of seeds on the same items."""
    seen = num_seeds / other_seeds
    return effect._replace(
        seed_variance=effect.seed_variance * seen,
        item_variance=effect.items_alone + effect.residual_variance * seen,
        residual_variance=effect.residual_variance * seen,
        # Adding seeds adds as many degrees, also for the trimmed mean, which has two fewer.
        seed_degrees=np.full(np.shape(effect.mean), effect.seed_degrees + other_seeds - num_seeds),
    )


def _with_more_items(effect: Effect, factor: float) -> Effect:
    """Return the effect with the variance expected for `factor` times as many items under the same seeds."""
    residual = effect.residual_variance / factor
    return effect._replace(
        seed_variance=np.maximum(effect.seed_variance - effect.residual_variance, 0.0) + residual,
        item_variance=effect.items_alone / factor + residual,
        residual_variance=residual,
        # The additional clusters are taken to be as unequal as the present ones.
        item_degrees=factor * (effect.item_degrees + 1.0) - 1.0,
    )


def _scale_clauses(evidence: CampaignEvidence, rule: CampaignRule) -> tuple[Criterion, ...]:
    least_left = rule.least_share_left * evidence.effect.mean
    return (
        _criterion("gain", evidence.effect.lower(evidence.level), np.greater, 0.0),
        _criterion("worth", _probability(evidence, rule), np.greater_equal, rule.least_probability),
        _criterion("replication", _replication(evidence, rule), np.greater_equal, rule.least_replication),
        _criterion("left out", evidence.least_without_one, np.greater_equal, least_left),
        _criterion("breadth", evidence.share_positive, np.greater_equal, rule.least_share_positive),
    )


def _stop_clauses(evidence: CampaignEvidence, rule: CampaignRule) -> tuple[Criterion, ...]:
    futile = (
        _criterion("too small", evidence.effect.upper(rule.futility_level), np.less, rule.least_effect),
        _criterion("unlikely", _probability(evidence, rule), np.less, rule.stop_probability),
        _criterion("no way", evidence.predictive_power, np.less, rule.least_predictive_power),
    )
    return tuple(clause._replace(is_met=clause.is_met & evidence.is_gate) for clause in futile)


def _probability(evidence: CampaignEvidence, rule: CampaignRule) -> Leading:
    """Return P(true gain >= least_effect)."""
    return rule.posterior(evidence.effect).probability_above(rule.least_effect, evidence.effect.mean)


def _replication(evidence: CampaignEvidence, rule: CampaignRule) -> Leading:
    """Return P(the planned replication's lower bound is above 0), over the posterior of the true gain."""
    variance = evidence.replication_variance
    needed = _found_from(variance, rule)
    return rule.posterior(evidence.effect).probability_above(needed, evidence.effect.mean, noise_variance=variance)


def _found_from(replication_variance: float | Leading, rule: CampaignRule) -> Leading:
    """Return the mean difference from which a replication finds a gain."""
    error: np.ndarray = np.sqrt(np.asarray(replication_variance, dtype=np.float64))
    return ndtri(rule.replication_level) * error


def _criterion(name: str, value: float | Leading, relation: np.ufunc, limit: float | Leading) -> Criterion:
    value, limit = np.asarray(value, dtype=np.float64), np.asarray(limit, dtype=np.float64)
    return Criterion(name, value, limit, np.asarray(relation(value, limit)))
