"""The power of a comparison before it runs, and how well small scales predict large ones."""

import math
from collections.abc import Sequence
from typing import Annotated

from assay.records.evaluation import Estimate
from assay.reporting.views.view import AsWritten, View
from assay.statistics.power import (
    components_from_discordance,
    detectable_difference,
    minimum_detectable_effect,
    power,
    seeds_needed,
)
from assay.statistics.proxy import ProxyAdvice

SEEDS_SHOWN = (2, 3, 5, 8, 12)


class DesignView(View):
    """A number of paired seeds."""

    num_seeds: int
    detectable_effect: float
    """As a share."""
    power: float | None
    """For `--effect`."""


class PowerView(View):
    """Power of seeds and items."""

    designs: tuple[DesignView, ...]
    two_models_difference: float | None
    """Smallest difference of two fixed models."""
    seeds_needed: int | None
    """For `--effect`."""


class ProxyScaleView(View):
    """A scale compared with the largest."""

    scale: float
    num_recipes: int
    num_seeds: int
    decision_accuracy: Annotated[Estimate, AsWritten]
    """Share of recipe pairs ranked correctly from one run each."""
    rank_correlation: Annotated[Estimate, AsWritten]
    """Spearman."""


class ProxyView(View):
    """How well small scales predict the largest."""

    target_scale: float
    recommended_scale: float | None
    """Smallest reliable one."""
    left_out: tuple[str, ...]
    """Recipes missing at a scale."""
    scales: tuple[ProxyScaleView, ...]


def power_view(
    *, items: int, effect: float | None, discordance: float, seed_sd: float, target_power: float
) -> PowerView:
    """Return the power for benchmark items on which two models differ with probability `discordance`, and runs
    whose seeds vary by `seed_sd`."""
    noise = components_from_discordance(discordance=discordance, seed_sd=seed_sd)
    two_models = detectable_difference(items, discordance=discordance, target_power=target_power)
    return PowerView(
        designs=tuple(
            DesignView(
                num_seeds=count,
                detectable_effect=minimum_detectable_effect(
                    noise, num_seeds=count, num_items=items, target_power=target_power
                ),
                power=None if effect is None else float(power(effect, noise, num_seeds=count, num_items=items)),
            )
            for count in SEEDS_SHOWN
        ),
        two_models_difference=two_models if math.isfinite(two_models) else None,
        seeds_needed=None
        if effect is None
        else seeds_needed(effect, noise, num_items=items, target_power=target_power),
    )


def proxy_view(advice: ProxyAdvice, left_out: Sequence[str]) -> ProxyView:
    """Return the advice, and the recipes that were left out."""
    return ProxyView(
        target_scale=advice.target_scale,
        recommended_scale=advice.recommended.scale if advice.recommended else None,
        left_out=tuple(left_out),
        scales=tuple(map(ProxyScaleView.of, advice.scales)),
    )
