"""Simulates a gate that a campaign decides, by that campaign's own rule.

    scores [seed, sample] --> look by look: the rule's clauses, solved for the mean --> pass, narrow or stop
                                       guardrails, failure modes --^

The thresholds are those of `campaign.rule`, with the variance that each sample's few seeds happen to show, so the
plan and the campaign state the same probability. A guardrail passes as often as for a candidate without harm, a
failure mode as often as for a candidate that fails at its `failure_rate`. The other clauses (coverage, the drill,
the sealed holdout) are assumed to pass; if they may not, declare a separate gate.
"""

import math
from functools import lru_cache
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, gammaincinv, ndtr, ndtri

from assay.base.shapes import Bool, Float64
from assay.planning.program.campaign_rule import POINTS
from assay.planning.program.plan import Plan
from assay.planning.program.program import Program
from assay.planning.program.work import Evidence, GateRule
from assay.statistics.campaign.look_power import (
    MAX_SEEDS,
    LookPower,
    SufficientDesign,
    power_of_looks,
    sufficient_design,
)
from assay.statistics.campaign.looks import LookPlan
from assay.statistics.campaign.rule import Bounds, CampaignRule, bounds_of_look, forecast_of
from assay.statistics.effect import Effect
from assay.statistics.failure_rate import rate_lower, rate_upper
from assay.statistics.guardrail import pass_probability
from assay.statistics.power import POWER, VarianceComponents, components_from_discordance
from assay.statistics.seeds.trimmed import MIN_SEEDS, OverSeeds, inner_seeds, normal_seeds, trimmed_variance

_VARIANCES = 96
"""Number of seed variances at which the clauses are solved; between them they are interpolated linearly."""


def simulate_campaign(
    program: Program,
    evidence: Evidence,
    scores: Float64[np.ndarray, "seed sample"],
    shares: Float64[np.ndarray, "guardrail sample"],
    failing: Float64[np.ndarray, "mode sample"],
) -> tuple[NDArray[np.str_], Float64[np.ndarray, " sample"]]:
    """Return each sample's verdict and estimated gain in points, at the look that ended it. `scores` are each seed's
    gains over all items, in points; `shares` and `failing` are uniform numbers for each guardrail and failure mode, of
    which a larger one is a worse result."""
    assert evidence.rule is not None, "a gate without a campaign's rule is judged by its own thresholds"
    num_seeds, num_samples = scores.shape
    verdict, is_open = np.full(num_samples, "narrow"), np.ones(num_samples, bool)
    estimate = scores.mean(axis=0) if num_seeds else np.full(num_samples, np.nan)
    design = _Design(evidence.rule, *_noise(program, evidence.benchmark), num_seeds)
    for look in design.plan().gate_seeds if num_seeds >= design.fewest_seeds() else ():
        mean, error = design.seen(scores[:look].T / POINTS)
        bounds = _bounds_at(design, look, error)
        is_harmless = _passes_guardrails(program, evidence.rule, look, shares)
        is_rare, is_frequent = _rare_and_frequent(program, evidence.rule, look, failing)
        look_verdict = np.where((mean < bounds.stops) | is_frequent, "stop", "narrow")
        look_verdict = np.where((mean >= bounds.scales) & is_harmless & is_rare, "pass", look_verdict)
        ends = is_open & ((look_verdict != "narrow") | (mean < bounds.ends))
        verdict[ends] = look_verdict[ends]
        estimate = np.where(is_open, mean * POINTS, estimate)
        is_open &= ~ends
    return verdict, estimate


def components_of(program: Program, benchmark: str) -> VarianceComponents:
    """Return the variance components of a comparison on a benchmark, in squared shares."""
    declared = program.benchmarks[benchmark]
    return components_from_discordance(discordance=declared.discordance, seed_sd=declared.seed_sd / POINTS)


def _noise(program: Program, benchmark: str) -> tuple[VarianceComponents, int]:
    return components_of(program, benchmark), program.benchmarks[benchmark].items


class _Noise(TypedDict):
    num_items: int
    over_seeds: OverSeeds


class DesignPower(NamedTuple):
    """How often a gate recognises a gain worth having, judged as `assay decide run --check` judges it."""

    gate: str
    least_gain: float
    """Smallest gain worth having, in points."""
    look: LookPower
    """The gate with all its runs."""
    sufficient: SufficientDesign | None
    """The fewest seeds, else the fewest more items, with enough power; None if neither suffices."""


def power_of_gate(program: Program, gate: str, *, num_seeds: int | None = None) -> DesignPower:
    """Return the power of a gate that reads a gain; with `num_seeds` of each arm instead of the program's."""
    evidence = program.gates[gate].evidence
    assert evidence is not None, f"'{gate}' reads no gain"
    if num_seeds is None:
        runs = program.activities[evidence.runs].runs if evidence.runs in program.activities else None
        num_seeds = runs.count // evidence.arms if runs is not None else 0
    noise = _noise(program, evidence.benchmark)
    if evidence.rule is None:
        return _power_of_thresholds(program, gate, evidence, num_seeds)
    design = _Design(evidence.rule, *noise, max(num_seeds, 2))
    if num_seeds < design.fewest_seeds():
        look = LookPower(num_seeds, math.inf, scales=0.0, stops=0.0, gives_up=0.0)
        design = design._replace(num_seeds=design.fewest_seeds())
    else:
        look = power_of_looks(design.plan(), design.thresholds(), design.components, **design.noise())[-1]
    enough = sufficient_design(design.plan(), design.thresholds(), design.components, **design.noise())
    return DesignPower(gate, evidence.least_gain, look, enough)


def power_of_last_gate(program: Program, plan: Plan) -> DesignPower | None:
    """Return the power of the last gate that reads a gain; None if no gate does."""
    ends = {item.name: item.end_h for item in plan.items}
    gates = [name for name, gate in program.gates.items() if gate.evidence is not None and name in ends]
    return power_of_gate(program, max(gates, key=ends.__getitem__)) if gates else None


def _power_of_thresholds(program: Program, gate: str, evidence: Evidence, num_seeds: int) -> DesignPower:
    """Return the power of a gate that compares the estimate with `pass_at`."""
    pass_at, stop_below = evidence.thresholds
    components, num_items = _noise(program, evidence.benchmark)
    assert program.pilot is not None, "a gate reads a gain, and there is no pilot"
    prior_sd = program.pilot.prior_sd
    least = float(ndtr(evidence.least_gain / prior_sd))
    worthy = prior_sd * ndtri(least + (1.0 - least) * (np.arange(_VARIANCES) + 0.5) / _VARIANCES)

    def power_of(seeds: int) -> LookPower:
        error = max(POINTS * components.standard_error(num_seeds=seeds, num_items=num_items), 1e-300)
        finds = pass_at + error * float(ndtri(POWER))
        scales, stops = (
            float(ndtr(side).mean()) for side in ((worthy - pass_at) / error, (stop_below - worthy) / error)
        )
        return LookPower(seeds, finds / POINTS, scales, stops, gives_up=0.0)

    counts = range(max(num_seeds, 1), MAX_SEEDS + 1)
    enough = next((SufficientDesign(seeds, 1) for seeds in counts if power_of(seeds).is_enough), None)
    return DesignPower(gate, evidence.least_gain, power_of(max(num_seeds, 1)), enough)


class _Design(NamedTuple):
    rule: GateRule
    components: VarianceComponents
    num_items: int
    num_seeds: int

    @property
    def is_trimmed(self) -> bool:
        return self.rule.over_seeds == "trimmed"

    def noise(self) -> _Noise:
        return {"num_items": self.num_items, "over_seeds": self.rule.over_seeds}

    def fewest_seeds(self) -> int:
        return MIN_SEEDS if self.is_trimmed else 2

    def seen(
        self, by_seed: Float64[np.ndarray, "sample seed"]
    ) -> tuple[Float64[np.ndarray, " sample"], Float64[np.ndarray, " sample"]]:
        """Return the mean that the rule uses, and its variance."""
        if self.is_trimmed:
            return np.mean(by_seed, axis=1, where=inner_seeds(by_seed)), trimmed_variance(by_seed)
        return by_seed.mean(axis=1), by_seed.var(axis=1, ddof=1) / by_seed.shape[1]

    def plan(self) -> LookPlan:
        """Return the declared looks that the runs reach; the last look uses all runs."""
        return LookPlan(
            gate_seeds=(
                *(look for look in self.rule.looks if self.fewest_seeds() <= look < self.num_seeds),
                self.num_seeds,
            ),
            error_rate=(1.0 - self.rule.confidence) / self.rule.candidates,
            unscheduled_share=self.rule.unscheduled_share,
        )

    def thresholds(self) -> CampaignRule:
        rule = self.rule
        return CampaignRule(
            least_effect=rule.least_effect / POINTS,
            prior_sd=(rule.prior_sd or rule.least_effect * 4 / 3) / POINTS,
            least_probability=rule.probability,
            stop_probability=rule.stop_probability,
            least_replication=rule.probability,
            replication_level=rule.confidence,
            least_predictive_power=rule.least_predictive_power,
        )


@lru_cache(maxsize=256)
def _solved(design: _Design, look: int) -> tuple[NDArray[np.float64], Bounds]:
    """Solve the clauses of a look on a grid of seed variances."""
    components, plan, rule = design.components, design.plan(), design.thresholds()
    degrees, expected = look - 1, components.seed / look
    if design.is_trimmed:
        degrees, expected = look - 3, expected * normal_seeds(look)[0]
    least, most = 2.0 * gammaincinv(degrees / 2.0, np.array([1e-7, 1.0 - 1e-7])) / degrees
    variances = expected * np.geomspace(max(least, 1e-9), most, _VARIANCES)
    seen = Effect(
        mean=np.zeros(_VARIANCES),
        seed_variance=variances,
        item_variance=np.asarray(components.item / design.num_items),
        residual_variance=np.asarray(0.0),
        seed_degrees=np.asarray(float(degrees)),
        item_degrees=design.num_items - 1,
    )
    end = design.num_seeds
    again = seen.variance
    if look < end:
        again = forecast_of(seen, num_seeds=look, end_seeds=end, prior_sd=rule.prior_sd).end.variance
    levels = dict(zip(plan.gate_seeds, plan.gate_levels(), strict=True))
    bounds = bounds_of_look(
        seen,
        num_seeds=look,
        level=levels[look],
        end_seeds=end,
        end_level=levels[end],
        replication_variance=again,
        rule=rule,
    )
    return variances, bounds


def _bounds_at(design: _Design, look: int, variance: Float64[np.ndarray, " sample"]) -> Bounds:
    variances, bounds = _solved(design, look)
    if not design.components.seed:  # all variances are one
        return Bounds(*(np.broadcast_to(bound[:1], variance.shape) for bound in bounds))
    return Bounds(*(np.interp(variance, variances, np.broadcast_to(bound, variances.shape)) for bound in bounds))


def _passes_guardrails(
    program: Program, rule: GateRule, look: int, shares: Float64[np.ndarray, "guardrail sample"]
) -> Bool[np.ndarray, " sample"]:
    passes = np.ones(shares.shape[1], bool)
    for guardrail, share in zip(rule.guardrails, shares, strict=True):
        components, num_items = _noise(program, guardrail.benchmark)
        chance = pass_probability(
            guardrail.margin / POINTS, components, num_seeds=look, num_items=num_items, is_share=True
        )
        passes &= share < chance
    return passes


def _rare_and_frequent(
    program: Program, rule: GateRule, look: int, failing: Float64[np.ndarray, "mode sample"]
) -> tuple[Bool[np.ndarray, " sample"], Bool[np.ndarray, " sample"]]:
    """Return whether each failure mode is certainly rare enough, and whether one is certainly too frequent,
    by exact bounds on the worst seed."""
    is_rare, is_frequent = np.ones(failing.shape[1], bool), np.zeros(failing.shape[1], bool)
    for mode, share in zip(rule.safety, failing, strict=True):
        declared = program.benchmarks[mode.benchmark]
        at_most = bdtr(np.arange(declared.items + 1), declared.items, declared.failure_rate)
        failures = np.searchsorted(at_most, share ** (1.0 / look)).clip(max=declared.items)
        is_rare &= rate_upper(failures, declared.items) <= mode.max_rate
        is_frequent |= rate_lower(failures, declared.items) > mode.max_rate
    return is_rare, is_frequent
