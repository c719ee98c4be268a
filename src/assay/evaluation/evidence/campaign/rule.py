"""Scale, narrow or stop: the one rule, for a real campaign and for a hundred thousand simulated ones.

    SCALE   all of:  the gain's lower bound at this look's level is above 0
                     P(true gain >= least_effect) >= 0.80, after shrinkage
                     P(a replication succeeds) >= 0.80
                     no one benchmark carries it: without any one, half the gain is left; 3 of 4 are positive
                     and every clause that the caller adds (guardrails, safety, coverage, extrapolation, plan)
    STOP    any of:  the gain's upper bound is below least_effect            } at gates only
                     P(true gain >= least_effect) < 0.20                     }
                     before the last gate: P(SCALE by then) < 0.02           }
                     and every stop clause that the caller adds (harm shown, rollback)
    NARROW  otherwise; the failed clauses say what is missing

STOP wins over SCALE. Futility is judged at gates only: unscheduled looks may find harm, but giving up at one
would cost power that no plan counted. All clauses are arithmetic on arrays, so that a decision and the
simulation that vouches for it (`benchmarks/campaign_simulation.py`) can not differ.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Shaped
from pydantic import Field
from scipy.special import ndtr
from scipy.stats import norm

from assay.base.config import FrozenConfig
from assay.evaluation.evidence.effect import Effect
from assay.evaluation.evidence.replication import PRIOR_SD, shrink
from assay.records.decision import Recommendation

RECOMMENDATIONS: tuple[Recommendation, ...] = ("scale", "narrow", "stop")


class CampaignRule(FrozenConfig):
    """The thresholds of the rule, registered before the first run. Effects are in the score's unit."""

    least_effect: float = Field(default=0.015, gt=0.0)
    """The smallest gain worth scaling (SESOI): 1.5 points of accuracy."""
    prior_sd: float = Field(default=PRIOR_SD, gt=0.0)
    """Spread of true effects among this lab's candidates, the failures included; see `evidence/replication`."""
    least_probability: float = Field(default=0.80, gt=0.5, lt=1.0)
    """SCALE needs this posterior probability of at least `least_effect`."""
    stop_probability: float = Field(default=0.20, gt=0.0, lt=0.5)
    """Below this posterior probability of `least_effect`, STOP."""
    least_replication: float = Field(default=0.80, gt=0.5, lt=1.0)
    """SCALE needs this probability that the planned replication finds a gain."""
    replication_level: float = Field(default=0.95, gt=0.5, lt=1.0)
    """One-sided confidence at which that replication would be judged."""
    futility_level: float = Field(default=0.90, gt=0.5, lt=1.0)
    """One-sided confidence of the upper bound that must reach `least_effect`."""
    least_chance: float = Field(default=0.02, ge=0.0, lt=0.5)
    """STOP when the probability of meeting SCALE by the last gate is below this. At 0.10, a third of true gains
    of 3 points were stopped at the first gate of the default design, to save a tenth of the seeds."""
    least_share_left: float = Field(default=0.5, gt=0.0, le=1.0)
    """Without any one benchmark, this share of the composite gain must be left."""
    least_share_positive: float = Field(default=0.75, gt=0.0, le=1.0)
    """Share of benchmarks on which the candidate must be better."""


class Criterion(NamedTuple):
    """One condition, element by element: its number, what it is held against, and whether it is met."""

    name: str
    value: Float64[np.ndarray, "*#leading"]
    limit: Float64[np.ndarray, "*#leading"]
    is_met: Bool[np.ndarray, "*#leading"]
    text: str = ""
    """What it says, for a reader: `P(gain >= 0.015)`."""


class CampaignEvidence(NamedTuple):
    """What the rule looks at; arrays broadcast against the effect's leading axes."""

    effect: Effect
    """Of the composite of benchmarks, at the declared checkpoint."""
    level: float | Float64[np.ndarray, "*#leading"]
    """One-sided confidence that this look must reach (`looks`)."""
    is_gate: bool | Bool[np.ndarray, "*#leading"]
    """Whether this look was declared; futility is judged at gates only."""
    replication_variance: float | Float64[np.ndarray, "*#leading"]
    """Of the mean difference, in the replication that would be planned."""
    least_without_one: float | Float64[np.ndarray, "*#leading"]
    """The smallest composite with one benchmark left out (`several.Breadth`)."""
    share_positive: float | Float64[np.ndarray, "*#leading"]
    """Of benchmarks with a gain."""
    chance_by_end: float | Float64[np.ndarray, "*#leading"] = 1.0
    """P(SCALE by the last gate), see `chance_by_end`; 1 at the last gate, where it is not asked."""
    also_needed: Sequence[Criterion] = ()
    """Further clauses that SCALE needs: guardrails, safety, coverage, extrapolation, plan, budget."""
    also_stops: Sequence[Criterion] = ()
    """Further clauses that each mean STOP: a safety bound broken, a rollback."""


class RuleOutcome(NamedTuple):
    """The recommendation and every clause with its number."""

    recommendation: Shaped[np.ndarray, "*leading"]
    """`scale`, `narrow` or `stop`, element by element."""
    scale_clauses: tuple[Criterion, ...]
    """All must be met to scale."""
    stop_clauses: tuple[Criterion, ...]
    """Any that is met stops."""


def judge(evidence: CampaignEvidence, rule: CampaignRule) -> RuleOutcome:
    """Apply the rule above."""
    needed = (*_scale_clauses(evidence, rule), *evidence.also_needed)
    stops = (*_stop_clauses(evidence, rule), *evidence.also_stops)
    shape = np.broadcast_shapes(*(clause.is_met.shape for clause in (*needed, *stops)))
    is_scale, is_stop = np.ones(shape, bool), np.zeros(shape, bool)
    for clause in needed:
        is_scale = is_scale & clause.is_met
    for clause in stops:
        is_stop = is_stop | clause.is_met
    recommendation = np.where(is_stop, "stop", np.where(is_scale, "scale", "narrow"))
    return RuleOutcome(recommendation, needed, stops)


def least_scaling_effect(
    variance: Float64[np.ndarray, "*#leading"],
    quantile: Float64[np.ndarray, "*#leading"],
    replication_variance: float | Float64[np.ndarray, "*#leading"],
    rule: CampaignRule,
) -> Float64[np.ndarray, "*#leading"]:
    """The smallest mean difference that meets the three clauses on the gain itself, given its variance.

    `quantile`: standard errors that this look's level asks for. Infinite where the variance is.
    """
    mean_weight, sd = shrink(np.ones_like(variance), variance, prior_sd=rule.prior_sd)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_significance = quantile * np.sqrt(variance)
        by_probability = (rule.least_effect + norm.ppf(rule.least_probability) * sd) / mean_weight
        spread = np.sqrt(sd**2 + replication_variance)
        wanted = norm.ppf(rule.replication_level) * np.sqrt(replication_variance)
        by_replication = (wanted + norm.ppf(rule.least_replication) * spread) / mean_weight
    least = np.maximum(by_significance, np.maximum(by_probability, by_replication))
    return np.where(np.isfinite(variance), least, np.inf)


def chance_by_end(
    effect: Effect,
    *,
    num_seeds: int,
    end_seeds: int,
    end_level: float,
    replication_variance: float | Float64[np.ndarray, "*#leading"],
    rule: CampaignRule,
) -> Float64[np.ndarray, "*#leading"]:
    """P(the gain meets SCALE at the last gate), given what has been seen; the same items, more seeds.

    The other clauses are taken as met, so this is an upper bound, and stopping on it is cautious. One seed can
    not say, and gives 1.
    """
    if num_seeds >= end_seeds or num_seeds < 2:
        return np.ones(np.shape(effect.mean))
    ahead = forecast_of(effect, num_seeds=num_seeds, end_seeds=end_seeds, prior_sd=rule.prior_sd)
    quantile = ahead.end.quantile(end_level)
    needed = least_scaling_effect(ahead.end.variance, quantile, replication_variance, rule)
    chance: np.ndarray = ndtr((ahead.slope * effect.mean - needed) / ahead.sd)
    return chance


def chance_anew(
    effect: Effect, *, num_seeds: int, new_seeds: int, level: float, rule: CampaignRule
) -> Float64[np.ndarray, "*leading"]:
    """P(the gain meets SCALE in a new campaign of `new_seeds` fresh seeds on the same items).

    Nothing that was seen counts there; it only says what to expect of the true gain, after shrinkage. The
    replication that is asked for is as large as the new campaign. One seed can not say, and gives 0.
    """
    if num_seeds < 2 or new_seeds < 2:
        return np.zeros(np.shape(effect.mean))
    items = np.maximum(effect.item_variance - effect.residual_variance, 0.0)
    steady = rule.prior_sd**2 + items
    weight = steady / (steady + effect.seed_variance)
    anew = _with_seeds(effect, num_seeds, new_seeds)
    needed = least_scaling_effect(anew.variance, anew.quantile(level), anew.variance, rule)
    spread = np.sqrt(steady * (1.0 - weight) + anew.seed_variance)
    chance: np.ndarray = ndtr((weight * effect.mean - needed) / np.maximum(spread, 1e-300))
    return chance


class Forecast(NamedTuple):
    """What the last gate will see: a mean difference around `slope` times today's, with `sd`."""

    slope: Float64[np.ndarray, "*leading"]
    sd: Float64[np.ndarray, "*leading"]
    end: Effect
    """With today's mean and the variance expected then."""


def forecast_of(effect: Effect, *, num_seeds: int, end_seeds: int, prior_sd: float) -> Forecast:
    """Predict the mean over `end_seeds` seeds from that over `num_seeds`, on the same items."""
    seen = num_seeds / end_seeds
    items = np.maximum(effect.item_variance - effect.residual_variance, 0.0)
    steady = prior_sd**2 + items
    weight = steady / (steady + effect.seed_variance)
    new_variance = steady * (1.0 - weight) + effect.seed_variance * num_seeds / (end_seeds - num_seeds)
    end = _with_seeds(effect, num_seeds, end_seeds)
    return Forecast(seen + (1.0 - seen) * weight, (1.0 - seen) * np.sqrt(new_variance), end)


def _with_seeds(effect: Effect, num_seeds: int, other_seeds: int) -> Effect:
    """The same mean with the variance to be expected of another number of seeds on the same items."""
    seen = num_seeds / other_seeds
    items = np.maximum(effect.item_variance - effect.residual_variance, 0.0)
    return effect._replace(
        seed_variance=effect.seed_variance * seen,
        item_variance=items + effect.residual_variance * seen,
        residual_variance=effect.residual_variance * seen,
        seed_degrees=np.full(np.shape(effect.mean), other_seeds - 1.0),
    )


def _scale_clauses(evidence: CampaignEvidence, rule: CampaignRule) -> tuple[Criterion, ...]:
    effect = evidence.effect
    left = np.asarray(evidence.least_without_one, dtype=np.float64)
    share = np.asarray(evidence.share_positive, dtype=np.float64)
    return (
        _at_least(
            "gain", effect.lower(evidence.level), 0.0, "lower bound of the gain at this look", strict=True
        ),
        _at_least(
            "worth",
            _probability(evidence, rule),
            rule.least_probability,
            f"P(gain >= {rule.least_effect:g}) after shrinkage",
        ),
        _at_least(
            "replication",
            _replication(evidence, rule),
            rule.least_replication,
            "P(the planned replication finds a gain)",
        ),
        _at_least(
            "left out",
            left,
            rule.least_share_left * effect.mean,
            "smallest gain when any one benchmark is left out",
        ),
        _at_least("breadth", share, rule.least_share_positive, "share of benchmarks with a gain"),
    )


def _stop_clauses(evidence: CampaignEvidence, rule: CampaignRule) -> tuple[Criterion, ...]:
    is_gate = np.asarray(evidence.is_gate)
    futile = (
        _below(
            "too small",
            evidence.effect.upper(rule.futility_level),
            rule.least_effect,
            "upper bound of the gain",
        ),
        _below(
            "unlikely",
            _probability(evidence, rule),
            rule.stop_probability,
            f"P(gain >= {rule.least_effect:g}) after shrinkage",
        ),
        _below(
            "no way",
            np.asarray(evidence.chance_by_end, dtype=np.float64),
            rule.least_chance,
            "P(meeting SCALE by the last gate)",
        ),
    )
    return tuple(clause._replace(is_met=clause.is_met & is_gate) for clause in futile)


def _probability(evidence: CampaignEvidence, rule: CampaignRule) -> Float64[np.ndarray, "*leading"]:
    """P(true gain >= least_effect), given the effect and the prior."""
    mean, sd = shrink(evidence.effect.mean, evidence.effect.variance, prior_sd=rule.prior_sd)
    probability: np.ndarray = ndtr((mean - rule.least_effect) / np.maximum(sd, 1e-300))
    return probability


def _replication(evidence: CampaignEvidence, rule: CampaignRule) -> Float64[np.ndarray, "*leading"]:
    """P(the planned replication's lower bound is above 0), over the belief in the true gain."""
    mean, sd = shrink(evidence.effect.mean, evidence.effect.variance, prior_sd=rule.prior_sd)
    error = np.sqrt(np.asarray(evidence.replication_variance, dtype=np.float64))
    needed = norm.ppf(rule.replication_level) * error
    probability: np.ndarray = ndtr((mean - needed) / np.maximum(np.sqrt(sd**2 + error**2), 1e-300))
    return probability


def _at_least(
    name: str,
    value: Float64[np.ndarray, "*#leading"],
    limit: float | Float64[np.ndarray, "*#leading"],
    text: str,
    *,
    strict: bool = False,
) -> Criterion:
    value, bound = np.asarray(value, dtype=np.float64), np.asarray(limit, dtype=np.float64)
    return Criterion(name, value, bound, value > bound if strict else value >= bound, text)


def _below(
    name: str,
    value: Float64[np.ndarray, "*#leading"],
    limit: float | Float64[np.ndarray, "*#leading"],
    text: str,
) -> Criterion:
    value, bound = np.asarray(value, dtype=np.float64), np.asarray(limit, dtype=np.float64)
    return Criterion(name, value, bound, value < bound, text)
