"""What each declared look could find, and how often it would decide, before anything runs.

True gains are taken to be N(0, prior_sd^2), as the rule itself believes; what counts is what becomes of those
that are worth having, for the others a coin would stop as well. The luck is that of `power.VarianceComponents`,
and the scatter of its estimate with few seeds is integrated over. The clauses on the gain are all that is
looked at: guardrails, safety and breadth can only take away.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from assay.statistics.campaign.looks import LookPlan
from assay.statistics.campaign.rule import CampaignRule, bounds_of_look
from assay.statistics.effect import Effect, Leading
from assay.statistics.power import POWER, VarianceComponents, error_of_design, variance_scatter
from assay.statistics.seeds.trimmed import OverSeeds
from assay.statistics.warnings import MIN_FOUND

_POINTS = 64

MAX_SEEDS = 32
"""Beyond that items are added."""

MAX_ITEMS_FACTOR = 64
"""Beyond that many times the items a claim is better made smaller."""


class LookPower(NamedTuple):
    """A look by itself, before the first run. Shares are of the candidates whose gain is worth having."""

    num_seeds: int
    finds: float
    """The smallest true gain that it scales 80% of the time, in the score's unit."""
    scales: float
    stops: float
    """Wrongly: their gain seems too small or unlikely."""
    gives_up: float
    """Ended, open: no look to come would decide."""


class SufficientDesign(NamedTuple):
    """A campaign with one look that is large enough."""

    num_seeds: int
    items_factor: int
    """Times as many items as it has."""


def power_of_looks(
    plan: LookPlan,
    rule: CampaignRule,
    components: VarianceComponents,
    *,
    num_items: int,
    over_seeds: OverSeeds = "mean",
) -> list[LookPower]:
    """Each declared look."""
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
    """The fewest seeds that scale half of what is worth having; if there are none, the fewest items with them.
    None where neither does."""
    level, last = 1.0 - plan.gate_error_rate(), plan.gate_seeds[-1]

    def is_enough(design: SufficientDesign) -> bool:
        gate = design.num_seeds, level
        noise = _StudyNoise(components, design.items_factor * num_items, over_seeds)
        return _power(gate, gate, rule, noise).scales >= MIN_FOUND

    designs = [SufficientDesign(seeds, 1) for seeds in range(last, MAX_SEEDS + 1)]
    factors = [factor for factor in (2, 4, 8, 16, 32, 64) if factor <= MAX_ITEMS_FACTOR]
    designs += [SufficientDesign(seeds, factor) for seeds in (last, max(last, MAX_SEEDS)) for factor in factors]
    return next((candidate for candidate in designs if is_enough(candidate)), None)


class _StudyNoise(NamedTuple):
    components: VarianceComponents
    num_items: int
    over_seeds: OverSeeds

    def error(self, num_seeds: int) -> float:
        """What a mean over so many seeds errs by."""
        return error_of_design(
            self.components, num_seeds=num_seeds, num_items=self.num_items, over_seeds=self.over_seeds
        )

    def seen(self, num_seeds: int) -> Effect:
        """What its variance may be taken for."""
        return variance_scatter(
            self.components, num_seeds=num_seeds, num_items=self.num_items, over_seeds=self.over_seeds
        )


def _power(
    gate: tuple[int, float], end: tuple[int, float], rule: CampaignRule, noise: _StudyNoise
) -> LookPower:
    """Noise of a look with so many seeds at a level, where the last one has `end`'s."""
    (num_seeds, level), (end_seeds, end_level) = gate, end
    bounds = bounds_of_look(
        noise.seen(num_seeds),
        num_seeds=num_seeds,
        level=level,
        end_seeds=end_seeds,
        end_level=end_level,
        replication_variance=noise.error(end_seeds) ** 2,
        rule=rule,
    )
    error = max(noise.error(num_seeds), 1e-300)
    worthy = _gains_worth_having(rule)[:, None]

    def below(bound: Leading) -> float:
        """Share of what is worth having whose mean difference is."""
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
    """Equally likely true gains of those that are at least `least_effect`."""
    least = float(ndtr(rule.least_effect / rule.prior_sd))
    points: np.ndarray = rule.prior_sd * ndtri(least + (1.0 - least) * (np.arange(_POINTS) + 0.5) / _POINTS)
    return points
