"""Judges a campaign again from its per-item results: what stands in the memo is what follows, or it is
refused."""

from assay.base.clock import Clock
from assay.base.errors import ConfigError
from assay.evaluation.decision.candidate import BASELINE
from assay.launch.campaign.folder import OpenCampaign, recorded_decisions
from assay.launch.campaign.judge import judge, record_decision
from assay.launch.campaign.runs import finished_runs
from assay.launch.campaign.seal import Bench, score_sealed
from assay.records.decision import Decision
from assay.store.ledger.ledger import Ledger


def decide_again(campaign: OpenCampaign, ledger: Ledger, *, clock: Clock) -> list[Decision]:
    """Every decision on record, judged anew; `DamagedDataError` for one that does not follow any more."""
    runs = {
        arm: finished_runs(campaign, ledger, arm, clock=clock)
        for arm in (BASELINE, *(each.name for each in campaign.config.candidates))
    }
    decisions = []
    for recorded in recorded_decisions(campaign.folder):
        num_seeds = recorded.look.num_seeds
        decision = judge(
            campaign,
            recorded.candidate,
            runs[BASELINE][:num_seeds],
            runs[recorded.candidate][:num_seeds],
            Bench(ledger, clock, score_sealed),
            is_gate=recorded.look.is_gate,
        )
        decisions.append(record_decision(campaign, decision, ledger))
    return decisions


def look_now(campaign: OpenCampaign, ledger: Ledger, *, clock: Clock) -> list[Decision]:
    """An unscheduled look at every candidate that is not decided; recorded, and paid for from the error
    rate."""
    closed = {each.candidate for each in recorded_decisions(campaign.folder) if each.is_final}
    baseline = finished_runs(campaign, ledger, BASELINE, clock=clock)
    decisions = []
    for candidate in campaign.config.candidates:
        runs = finished_runs(campaign, ledger, candidate.name, clock=clock)
        num_seeds = min(len(runs), len(baseline))
        if candidate.name in closed or num_seeds in campaign.config.all_looks:
            continue
        if num_seeds < 2:
            raise ConfigError(
                f"campaign '{campaign.config.name}': {num_seeds} paired seeds of {candidate.name} are "
                "finished; a look needs 2. Go on with 'assay campaign run'."
            )
        bench = Bench(ledger, clock, score_sealed)
        decision = judge(campaign, candidate.name, baseline[:num_seeds], runs[:num_seeds], bench, is_gate=False)
        decisions.append(record_decision(campaign, decision, ledger))
    return decisions
