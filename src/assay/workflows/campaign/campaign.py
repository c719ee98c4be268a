"""Runs a campaign: for each declared look, train the arms, gather the evidence and decide; then write the memo.

    train           gather               decide                     memo
    baseline s0 ..  scores, files,   --> scale, narrow or stop  --> HTML, Markdown and a one-page PDF
    faster   s0 ..  holdout, costs       for each open candidate
    (train.py)      (evidence.py)        (look.py, decision)        (memo.py)

Runs may train concurrently and end in any order, but a look waits for all runs up to its number of seeds, so a
decision does not depend on their order. A decided candidate is not trained any further, which saves device-hours.
No state is only in memory: a campaign that was killed continues when it is run again.
"""

from collections.abc import Callable

from assay.base.units import duration_text, number_of
from assay.decision.candidate import warning_of_patch
from assay.reporting.views.statements import decision_text, statement_text
from assay.statistics.benchmark_items import load_result
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.evidence import ScoredRun, ScoreSealed, Scoring, score_run, suite_folder
from assay.workflows.campaign.folder import OpenCampaign
from assay.workflows.campaign.look import take_look_at
from assay.workflows.campaign.memo import WrittenMemo, write_memo
from assay.workflows.campaign.train import ArmScheduler, CampaignStopped, ExecutionSettings, campaign_arm_plan

OnMessage = Callable[[str], None]


def run_campaign(
    campaign: OpenCampaign,
    ledger: Ledger,
    *,
    execution: ExecutionSettings,
    on_message: OnMessage,
    score_sealed: ScoreSealed = suite_folder,
) -> WrittenMemo:
    """Train and decide until every candidate is decided, or the seeds or the budget are used up; write the memo.

    `score_sealed` evaluates the sealed benchmark, or finds its results.
    """
    ledger.record_campaign(campaign.record)
    config, training = campaign.config, ArmScheduler(campaign_arm_plan(campaign), ledger, execution)
    scoring = Scoring(ledger, execution.clock, score_sealed)
    scored: dict[tuple[str, int], ScoredRun] = {}
    open_ = [item.name for item in config.candidates]
    stopped_by = None
    for candidate in config.candidates:
        if (warning := warning_of_patch(candidate.name, candidate.patch)) is not None:
            on_message(f"warning: {statement_text(warning)}")
    try:
        for num_seeds in config.all_looks:
            seeds = config.seed_numbers[:num_seeds]
            due = [(arm, seed) for seed in seeds for arm in (config.baseline, *open_) if (arm, seed) not in scored]
            for run in training.finish(due):
                scored[run.arm, run.seed] = found = score_run(campaign, run, scoring)
                on_message(f"{run.arm}, seed {run.seed}: {result_text(campaign, found)}")
            for name in list(open_):
                before, after = ([scored[arm, seed] for seed in seeds] for arm in (config.baseline, name))
                decision = take_look_at(campaign, name, before, after, scoring)
                on_message(f"look at {number_of(num_seeds, 'seed')}: {decision_text(decision)}")
                if decision.is_final:
                    open_.remove(name)
            if not open_:
                break
    except CampaignStopped as stopped:
        stopped_by = str(stopped)
    return write_memo(campaign, stopped_by=stopped_by)


def result_text(campaign: OpenCampaign, scored: ScoredRun) -> str:
    """Return the run's score on the first primary benchmark and its cost, as text."""
    primary = campaign.config.rule.primary[0]
    result = load_result(scored.folders[primary])
    return f"{primary} {result.score.value:.4f}, {duration_text(scored.record.device_s)} of device time"
