"""Power of each declared look of a campaign, before anything runs.

True gains follow N(0, prior_sd^2), as in the rule. The shares count only candidates whose gain is worth having; for the
others, any stop is right. The noise is that of `power.VarianceComponents`, and the scatter of its estimate with few
seeds is integrated over. Only the clauses on the gain are considered: guardrails, safety and breadth can only reduce
the share that is scaled.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from assay.statistics.campaign.looks import LookPlan
from assay.statistics.campaign.rule import CampaignRule, bounds_of_look, forecast_of
from assay.statistics.effect import Effect, Leading
from assay.statistics.power import POWER, VarianceComponents, error_of_design, variance_scatter
from assay.statistics.seeds.trimmed import OverSeeds
from assay.statistics.warnings import MIN_FOUND

_POINTS = 64

MAX_SEEDS = 32
"""With more seeds needed, items are added instead."""

MAX_ITEMS_FACTOR = 64
"""With more items needed, a smaller claim is better."""


class LookPower(NamedTuple):
    """One look in isolation, before the first run. Shares are of the candidates whose gain is worth having."""

    num_seeds: int
    finds: float
    """Smallest true gain that the look scales with 80% probability, in the score's unit."""
    scales: float
    stops: float
    """Share that is wrongly stopped because the gain seems too small or unlikely."""
    gives_up: float
    """Share that ends without an answer because no later look would decide."""

    @property
    def is_enough(self) -> bool:
        """Whether it scales half of them; otherwise a design lacks power, in a plan as in a campaign."""
        return self.scales >= MIN_FOUND


class SufficientDesign(NamedTuple):
    """A campaign with one look that has enough power."""

    num_seeds: int
    items_factor: int
    """Factor on the number of items."""


def power_of_looks(
    plan: LookPlan,
    rule: CampaignRule,
    components: VarianceComponents,
    *,
    num_items: int,
    over_seeds: OverSeeds = "mean",
) -> list[LookPower]:
    """Return the power of each declared look."""
    gates = list(zip(plan.gate_seeds, plan.gate_levels(), strict=True))
    end, noise = gates[-1], _StudyNoise(components, num_items, over_seeds)
    return [_power(gate, end, rule, noise) for gate in gates]


def sufficient_design(
    plan: LookPlan,
    rule: CampaignRule,
    components: VarianceComponents,
    *,
    num_items: int,
    over_seeds: OverSeeds = "mean",
) -> SufficientDesign | None:
    """Return the fewest seeds that scale half of the candidates worth having; else, the fewest additional items.

    None if neither suffices.
    """
    level, last = 1.0 - plan.gate_error_rate(), plan.gate_seeds[-1]

    def is_enough(design: SufficientDesign) -> bool:
        gate = design.num_seeds, level
        noise = _StudyNoise(components, design.items_factor * num_items, over_seeds)
        return _power(gate, gate, rule, noise).is_enough

    designs = [SufficientDesign(seeds, 1) for seeds in range(last, MAX_SEEDS + 1)]
    factors = [factor for factor in (2, 4, 8, 16, 32, 64) if factor <= MAX_ITEMS_FACTOR]
    designs += [SufficientDesign(seeds, factor) for seeds in (last, max(last, MAX_SEEDS)) for factor in factors]
    return next((candidate for candidate in designs if is_enough(candidate)), None)


class _StudyNoise(NamedTuple):
    components: VarianceComponents
    num_items: int
    over_seeds: OverSeeds

    def error(self, num_seeds: int) -> float:
        """Return the standard error of a mean over this many seeds."""
        return error_of_design(
            self.components, num_seeds=num_seeds, num_items=self.num_items, over_seeds=self.over_seeds
        )

    def seen(self, num_seeds: int) -> Effect:
        """Return the possible estimates of its variance."""
        return variance_scatter(
            self.components, num_seeds=num_seeds, num_items=self.num_items, over_seeds=self.over_seeds
        )


def _power(gate: tuple[int, float], end: tuple[int, float], rule: CampaignRule, noise: _StudyNoise) -> LookPower:
    """Return the power of a gate (seeds, level) in a campaign whose last gate is `end`."""
    (num_seeds, level), (end_seeds, end_level) = gate, end
    seen = noise.seen(num_seeds)
    end_of_seen = seen
    if num_seeds < end_seeds:
        end_of_seen = forecast_of(seen, num_seeds=num_seeds, end_seeds=end_seeds, prior_sd=rule.prior_sd).end
    bounds = bounds_of_look(
        seen,
        num_seeds=num_seeds,
        level=level,
        end_seeds=end_seeds,
        end_level=end_level,
        # A campaign plans its replication with the variance that it happens to see.
        replication_variance=end_of_seen.variance,
        rule=rule,
    )
    error = max(noise.error(num_seeds), 1e-300)
    worthy = _gains_worth_having(rule)[:, None]

    def below(bound: Leading) -> float:
        return float(ndtr((bound - worthy) / error).mean())

    def shortfall(gain: float) -> float:
        return POWER - float(ndtr((gain - bounds.scales) / error).mean())

    return LookPower(
        num_seeds=num_seeds,
        finds=float(brentq(shortfall, 0.0, float(bounds.scales.max()) + 10.0 * error, xtol=1e-9)),
        scales=1.0 - below(bounds.scales),
        stops=below(bounds.stops),
        gives_up=below(bounds.ends) - below(bounds.stops),
    )


def _gains_worth_having(rule: CampaignRule) -> Leading:
    """Return equally likely true gains, given that they are at least `least_effect`."""
    least = float(ndtr(rule.least_effect / rule.prior_sd))
    points: np.ndarray = rule.prior_sd * ndtri(least + (1.0 - least) * (np.arange(_POINTS) + 0.5) / _POINTS)
    return points
