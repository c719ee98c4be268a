"""The campaigns on record, the power of a comparison before it runs, and how well small scales predict large ones."""

import math
from collections.abc import Sequence
from typing import Annotated

from assay.records.campaign import Campaign
from assay.records.decision import Decision, Recommendation
from assay.records.evaluation import Estimate
from assay.reporting.views.view import AsWritten, UtcTime, View
from assay.statistics.power import (
    components_from_discordance,
    detectable_difference,
    minimum_detectable_effect,
    power,
    seeds_needed,
)
from assay.statistics.proxy import ProxyAdvice
from assay.store.ledger.ledger import Ledger

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


class CampaignLine(View):
    """A candidate's latest decision."""

    campaign: str
    created: UtcTime
    candidate: str | None = None
    """Null before the first look."""
    recommendation: Recommendation | None = None
    is_final: bool | None = None
    """No look remains."""
    seeds: int | None = None
    """Pairs."""
    effect: float | None = None
    """Candidate minus baseline."""
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    unit: str | None = None
    device_hours: float | None = None
    """Candidate and baseline."""
    campaign_device_hours: float = 0.0


def campaign_lines(ledger: Ledger) -> list[CampaignLine]:
    """Return the rows of all campaigns, newest campaign first."""
    return [line for campaign in ledger.campaigns() for line in lines_of(campaign, ledger.decisions(campaign.name))]


def lines_of(campaign: Campaign, decisions: Sequence[Decision]) -> list[CampaignLine]:
    """Return the latest decision of each candidate."""
    newest = {decision.candidate: decision for decision in decisions}
    runs = {run.run_id: run.device_s for item in newest.values() for run in item.runs}
    return [
        CampaignLine.of(
            item,
            created=campaign.created_s,
            seeds=item.look.num_seeds,
            effect=item.effect.value,
            low=item.effect.low,
            high=item.effect.high,
            confidence=item.effect.confidence,
            device_hours=item.spent_s / 3600.0,
            campaign_device_hours=sum(runs.values()) / 3600.0,
        )
        for item in newest.values()
    ] or [CampaignLine(campaign=campaign.name, created=campaign.created_s)]
