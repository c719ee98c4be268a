"""The list of campaigns, with one row per candidate."""

from collections.abc import Sequence

from assay.records.campaign import Campaign
from assay.records.decision import Decision, Recommendation
from assay.reporting.views.view import UtcTime, View
from assay.store.ledger.ledger import Ledger


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
