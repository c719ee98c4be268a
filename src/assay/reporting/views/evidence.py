"""What a comparison could find before anything runs, and which small scale tells the truth."""

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
    """A comparison over so many paired seeds."""

    num_seeds: int
    detectable_effect: float
    """The gain that it finds with the wanted power, a share."""
    chance: float | None
    """To find `--effect`; null without it."""


class PowerView(View):
    """What seeds and items can find together."""

    designs: tuple[DesignView, ...]
    two_models_difference: float | None
    """What the items alone could find between two fixed models; null where nothing."""
    seeds_needed: int | None
    """For `--effect`; null without it, and where no number of seeds suffices."""


class ProxyScaleView(View):
    """What one scale's runs say of the largest scale's."""

    scale: float
    """As given: parameters, tokens or FLOP."""
    num_recipes: int
    num_seeds: int
    decision_accuracy: Annotated[Estimate, AsWritten]
    """Share of pairs of recipes in the right order, from one run of each; 0.5 is a coin."""
    rank_correlation: Annotated[Estimate, AsWritten]
    """Spearman's, with the largest scale's mean."""


class ProxyView(View):
    """Small scales, judged by the largest."""

    target_scale: float
    """The largest."""
    recommended_scale: float | None
    """The smallest that tells the truth; null where none does."""
    left_out: tuple[str, ...]
    """Recipes that some scale lacks."""
    scales: tuple[ProxyScaleView, ...]
    """All smaller ones, ascending."""


def power_view(
    *, items: int, effect: float | None, discordance: float, seed_sd: float, target_power: float
) -> PowerView:
    """For items on which two models differ with `discordance`, and a recipe's `seed_sd` over its seeds."""
    noise = components_from_discordance(discordance=discordance, seed_sd=seed_sd)
    two_models = detectable_difference(items, discordance=discordance, target_power=target_power)
    return PowerView(
        designs=tuple(
            DesignView(
                num_seeds=count,
                detectable_effect=minimum_detectable_effect(
                    noise, num_seeds=count, num_items=items, target_power=target_power
                ),
                chance=None
                if effect is None
                else float(power(effect, noise, num_seeds=count, num_items=items)),
            )
            for count in SEEDS_SHOWN
        ),
        two_models_difference=two_models if math.isfinite(two_models) else None,
        seeds_needed=None
        if effect is None
        else seeds_needed(effect, noise, num_items=items, target_power=target_power),
    )


def proxy_view(advice: ProxyAdvice, left_out: Sequence[str]) -> ProxyView:
    """The advice, and the recipes that it could not use."""
    return ProxyView(
        target_scale=advice.target_scale,
        recommended_scale=advice.recommended.scale if advice.recommended else None,
        left_out=tuple(left_out),
        scales=tuple(map(ProxyScaleView.of, advice.scales)),
    )
