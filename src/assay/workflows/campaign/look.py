"""Looks at a candidate: gather, decide, record. At declared looks, again, or in between."""

from collections.abc import Sequence

from assay.base.clock import Clock
from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.decision.decide import decide
from assay.records.decision import Decision
from assay.records.evidence import Look
from assay.statistics.campaign.looks import take_look
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.decisions import record_decision
from assay.workflows.campaign.folder import OpenCampaign, recorded_decisions, recorded_looks
from assay.workflows.campaign.gather import gather
from assay.workflows.campaign.scores import ScoredRun, score_finished_runs
from assay.workflows.campaign.sealed_holdout import LookContext
from assay.workflows.campaign.suites import require_suites_as_declared


def triage_ledger(
    campaign: OpenCampaign,
    candidate: str,
    baseline_runs: Sequence[ScoredRun],
    candidate_runs: Sequence[ScoredRun],
    context: LookContext,
    *,
    is_gate: bool = True,
) -> Decision:
    """Decide on the paired seeds at a declared look, or with `is_gate=False` at an undeclared one.

    Raises `ConfigError` for a new look if a suite changed since the declaration, and the errors of
    `record_decision`.
    """
    num_seeds = len(baseline_runs)
    if (candidate, num_seeds, is_gate) not in recorded_looks(campaign.folder):
        require_suites_as_declared(campaign.record, campaign.config)
    earlier_looks = _looks_before(campaign, candidate, num_seeds, is_gate=is_gate)
    name = (
        f"look at {number_of(num_seeds, 'seed')}" if is_gate else f"unscheduled look at {number_of(num_seeds, 'seed')}"
    )
    look = take_look(campaign.config.look_plan(), earlier_looks, name=name, num_seeds=num_seeds, is_gate=is_gate)
    facts = gather(campaign, candidate, look, baseline_runs, candidate_runs, context)
    return record_decision(campaign, decide(campaign.config, campaign.record, facts), context.ledger)


def decide_again(campaign: OpenCampaign, ledger: Ledger, *, clock: Clock) -> list[Decision]:
    """Repeat every recorded decision. Raises `DamagedDataError` if one does not follow from the results any
    more."""
    runs = {arm: score_finished_runs(campaign, ledger, arm, clock=clock) for arm in campaign.config.arm_names}
    decisions = []
    for recorded in recorded_decisions(campaign.folder):
        num_seeds = recorded.look.num_seeds
        decision = triage_ledger(
            campaign,
            recorded.candidate,
            runs[campaign.config.baseline][:num_seeds],
            runs[recorded.candidate][:num_seeds],
            LookContext(ledger, clock),
            is_gate=recorded.look.is_gate,
        )
        decisions.append(decision)
    return decisions


def look_now(campaign: OpenCampaign, ledger: Ledger, *, clock: Clock) -> list[Decision]:
    """Take an unscheduled look at every undecided candidate; it is recorded and spends error rate."""
    closed = {decision.candidate for decision in recorded_decisions(campaign.folder) if decision.is_final}
    baseline = score_finished_runs(campaign, ledger, campaign.config.baseline, clock=clock)
    decisions = []
    for candidate in campaign.config.candidates:
        runs = score_finished_runs(campaign, ledger, candidate.name, clock=clock)
        num_seeds = min(len(runs), len(baseline))
        if candidate.name in closed or num_seeds in campaign.config.all_looks:
            continue
        if num_seeds < 2:
            raise ConfigError(
                f"campaign '{campaign.config.name}': {number_of(num_seeds, 'paired seed')} of {candidate.name} "
                "finished so far; a look needs 2. Continue with 'assay campaign run'."
            )
        pairs = baseline[:num_seeds], runs[:num_seeds]
        decisions.append(triage_ledger(campaign, candidate.name, *pairs, LookContext(ledger, clock), is_gate=False))
    return decisions


def _looks_before(campaign: OpenCampaign, candidate: str, num_seeds: int, *, is_gate: bool) -> list[Look]:
    """Return the earlier looks at this candidate; an unscheduled look precedes the gate with as many seeds."""
    looks = [decision.look for decision in recorded_decisions(campaign.folder) if decision.candidate == candidate]
    return [look for look in looks if (look.num_seeds, look.is_gate) < (num_seeds, is_gate)]
