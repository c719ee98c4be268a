"""The campaigns and ladders on record, the power of a comparison before it runs, and how well small scales predict
large ones."""

import math
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal

from assay.records.campaign import Campaign
from assay.records.decision import Clause, Decision, Recommendation
from assay.records.evaluation import Estimate
from assay.records.ladder import BASE_STEP, NO_VERDICT, OWN_SIZE, TOGETHER_STEP, LadderStep
from assay.reporting.views.view import AsWritten, UtcTime, View
from assay.statistics.failure_rate import rate_upper
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


# Ladders


class RungReliability(View):
    """How often a gate had the same verdict at a rung as at the base's own size."""

    gate: str
    """`gain`, or a key of the ladder's `gates`."""
    rung: str
    """Name."""
    agreed: int
    """Changes with the same verdict."""
    changes: int
    """Judged at both."""
    least: float
    """One-sided 95% lower bound of the share that agrees."""
    is_smallest: bool
    """The smallest rung from which on all verdicts agree."""


class LadderView(View):
    """A ladder."""

    ladder: str
    """Name."""
    question: str
    """What its page answers."""
    declared: UtcTime
    """When its file was declared."""
    base_run: str
    """The run that shows that the base works."""
    status: Literal["done", "stopped", "open"]
    """`stopped`: a step's verdict ended it. `open`: steps are left."""
    stopped_by: str | None
    """Why steps are left, e.g. the budget."""
    known_good: str
    """File of the newest known-good config."""
    changes: dict[str, dict[str, Any]]
    """Change -> patch, in their order."""
    steps: tuple[Annotated[LadderStep, AsWritten], ...]
    """`base`, the changes, `together`; those that are over."""
    decisions: dict[str, Annotated[Decision, AsWritten]]
    """Step -> decision of its campaign at the base's own size."""
    reliability: tuple[RungReliability, ...]
    """Gate by gate, from the smallest rung to the largest."""
    device_s: float
    """Device time of all its runs."""

    def named(self, action: str) -> list[str]:
        """Return the changes with an action, in order."""
        return [step.step for step in self.steps if step.action == action and step.step in self.changes]

    def interaction(self) -> Clause | None:
        """Return the check whether gains add up; None if there was none."""
        return next((step.clause("interaction") for step in self.steps if step.step == TOGETHER_STEP), None)


def harm_shown(decision: Decision) -> Clause | None:
    """Return the clause by which a change is certainly harmful; None if there is none."""
    clauses = [clause for gate in decision.gates if gate.verdict == "pass" for clause in gate.clauses]
    harms = (clause for clause in clauses if clause.type in ("harm", "rate_above") and clause.verdict == "pass")
    return next(harms, None)


def rung_reliability(steps: Sequence[LadderStep]) -> Iterator[RungReliability]:
    """Compare the verdicts on changes at smaller rungs with those at the base's own size."""
    changes = [step for step in steps if step.step not in (BASE_STEP, TOGETHER_STEP)]
    rungs = dict.fromkeys(trial.rung for step in changes for trial in step.trials if trial.rung != OWN_SIZE)
    for gate in dict.fromkeys(clause.type for step in changes for trial in step.trials for clause in trial.clauses):
        same = {rung: verdicts for rung in rungs if (verdicts := _agreements(changes, gate, rung))}
        reliable = [rung for rung, _ in takewhile(lambda item: all(item[1]), reversed(same.items()))]
        for rung, verdicts in same.items():
            agreed, count = sum(verdicts), len(verdicts)
            least = 1.0 - float(rate_upper(count - agreed, count))
            is_smallest = rung in reliable[-1:]
            yield RungReliability(
                gate=gate, rung=rung, agreed=agreed, changes=count, least=least, is_smallest=is_smallest
            )


def _agreements(steps: Sequence[LadderStep], gate: str, rung: str) -> list[bool]:
    pairs = [(step.clause(gate, rung), step.clause(gate)) for step in steps]
    return [
        small.verdict == own.verdict
        for small, own in pairs
        if small is not None and own is not None and NO_VERDICT not in (small.reason, own.reason)
    ]
