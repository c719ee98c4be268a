"""Runs a campaign: for each declared look, train the arms, gather the facts and decide; then write the memo.

    train           gather               decide                     memo
    baseline s0 ..  scores, files,   --> scale, narrow or stop  --> HTML and Markdown
    faster   s0 ..  holdout, costs       for each open candidate
    (train.py)      (gather.py)          (evaluation/decision)      (memo.py)

Runs may train concurrently and end in any order, but a look waits for all runs up to its number of seeds, so a
decision does not depend on their order. A decided candidate is not trained any further, which saves device-hours.
No state is only in memory: a campaign that was killed continues when it is run again.
"""

from collections.abc import Callable
from typing import NamedTuple

from assay.base.units import duration_text, number_of
from assay.decision.candidate import warning_of_patch
from assay.records.decision import Decision
from assay.statistics.benchmark_items import load_result
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.arm_plan import campaign_arm_plan
from assay.workflows.campaign.folder import OpenCampaign
from assay.workflows.campaign.look import triage_ledger
from assay.workflows.campaign.scores import ScoredRun, score_run, suite_folder
from assay.workflows.campaign.sealed_holdout import LookContext, ScoreSealed
from assay.workflows.campaign.train import ArmScheduler, CampaignStopped, ExecutionSettings

OnMessage = Callable[[str], None]


class CampaignResult(NamedTuple):
    """The state of a campaign."""

    decisions: dict[str, Decision]
    """Newest decision by candidate; missing before its first look."""
    stopped_by: str | None
    """Why the campaign ended early: the budget, or a request to stop. None if it did not."""


def run_campaign(
    campaign: OpenCampaign,
    ledger: Ledger,
    *,
    execution: ExecutionSettings,
    on_message: OnMessage,
    score: ScoreSealed = suite_folder,
) -> CampaignResult:
    """Train and decide until every candidate is decided, or the seeds or the budget are used up.

    `score` evaluates the sealed benchmark, or finds its results.
    """
    ledger.record_campaign(campaign.record)
    config, training = campaign.config, ArmScheduler(campaign_arm_plan(campaign), ledger, execution)
    context = LookContext(ledger, execution.clock, score)
    decisions: dict[str, Decision] = {}
    scored: dict[tuple[str, int], ScoredRun] = {}
    open_ = [item.name for item in config.candidates]
    for candidate in config.candidates:
        if warning := warning_of_patch(candidate.name, candidate.patch):
            on_message(f"warning: {warning}")
    try:
        for num_seeds in config.all_looks:
            seeds = config.seed_numbers[:num_seeds]
            due = [(arm, seed) for seed in seeds for arm in (config.baseline, *open_) if (arm, seed) not in scored]
            for run in training.finish(due):
                found = score_run(campaign, run, ledger, clock=execution.clock)
                scored[run.arm, run.seed] = found
                on_message(f"{run.arm}, seed {run.seed}: {result_text(campaign, found)}")
            for name in list(open_):
                before, after = ([scored[arm, seed] for seed in seeds] for arm in (config.baseline, name))
                decisions[name] = decision = triage_ledger(campaign, name, before, after, context)
                on_message(f"look at {number_of(num_seeds, 'seed')}: {decision.sentence}")
                if decision.is_final:
                    open_.remove(name)
            if not open_:
                break
    except CampaignStopped as stopped:
        return CampaignResult(decisions, str(stopped))
    return CampaignResult(decisions, None)


def result_text(campaign: OpenCampaign, scored: ScoredRun) -> str:
    """Return the run's score on the first primary benchmark and its cost, as text."""
    primary = campaign.config.rule.primary[0]
    result = load_result(scored.folders[primary])
    return f"{primary} {result.score.value:.4f}, {duration_text(scored.record.device_s)} of device time"
