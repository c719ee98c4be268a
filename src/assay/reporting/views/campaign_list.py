"""All campaigns, a line for each candidate: what was decided last."""

from collections.abc import Sequence

from assay.records.campaign import Campaign
from assay.records.decision import Decision, Recommendation
from assay.reporting.views.view import UtcTime, View
from assay.store.ledger.ledger import Ledger


class CampaignLine(View):
    """One candidate of a campaign; of a campaign before its first look, one line without a candidate."""

    campaign: str
    created: UtcTime
    """When it was declared."""
    candidate: str | None = None
    """Null, as is all that follows, before the campaign's first look."""
    recommendation: Recommendation | None = None
    is_final: bool | None = None
    """False where a declared look is still to come."""
    seeds: int | None = None
    """Paired seeds behind it."""
    effect: float | None = None
    """The primary effect: candidate minus baseline."""
    low: float | None = None
    """Lower end of its interval."""
    high: float | None = None
    confidence: float | None = None
    unit: str | None = None
    """The unit of the effect, e.g. `share`."""
    device_hours: float | None = None
    """Spent by then on the candidate's runs and the baseline's."""
    campaign_device_hours: float = 0.0
    """Device-hours of all runs behind the newest decisions of the campaign; candidates share the baseline's."""


def campaign_lines(ledger: Ledger) -> list[CampaignLine]:
    """The newest campaign first."""
    return [
        line for campaign in ledger.campaigns() for line in lines_of(campaign, ledger.decisions(campaign.name))
    ]


def lines_of(campaign: Campaign, decisions: Sequence[Decision]) -> list[CampaignLine]:
    """Each candidate's newest decision."""
    newest = {decision.candidate: decision for decision in decisions}
    runs = {run.run_id: run.device_s for each in newest.values() for run in each.runs}
    return [
        CampaignLine.of(
            each,
            created=campaign.created_s,
            seeds=each.look.num_seeds,
            effect=each.effect.value,
            low=each.effect.low,
            high=each.effect.high,
            confidence=each.effect.confidence,
            device_hours=each.spent_s / 3600.0,
            campaign_device_hours=sum(runs.values()) / 3600.0,
        )
        for each in newest.values()
    ] or [CampaignLine(campaign=campaign.name, created=campaign.created_s)]
