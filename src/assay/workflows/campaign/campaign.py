"""Runs a campaign: for each declared look, train the arms, gather the evidence and decide; then write the memo.

    train           gather               decide                     memo
    baseline s0 ..  scores, files,   --> scale, narrow or stop  --> HTML, Markdown and a one-page PDF
    faster   s0 ..  holdout, costs       for each open candidate
    (train.py)      (evidence.py)        (decision, folder.py)      (memo.py)

Runs may train concurrently and end in any order, but a look waits for all runs up to its number of seeds, so a
decision does not depend on their order. A decided candidate is not trained any further, which saves device-hours.
No state is only in memory: a campaign that was killed continues when it is run again.
"""

from collections.abc import Callable, Sequence

from assay.base.errors import ConfigError
from assay.base.units import duration_text, number_of
from assay.decision.candidate import warning_of_patch
from assay.decision.decide import decide
from assay.records.decision import Decision
from assay.reporting.views.statements import decision_text, statement_text
from assay.statistics.benchmark_items import load_result
from assay.statistics.campaign.looks import take_look
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.evidence import (
    ScoredRun,
    ScoreSealed,
    Scoring,
    gather,
    score_finished_runs,
    score_run,
    suite_folder,
)
from assay.workflows.campaign.folder import (
    OpenCampaign,
    record_decision,
    recorded_decisions,
    recorded_looks,
    require_suites_as_declared,
)
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


# Looks


def take_look_at(
    campaign: OpenCampaign,
    candidate: str,
    baseline_runs: Sequence[ScoredRun],
    candidate_runs: Sequence[ScoredRun],
    scoring: Scoring,
    *,
    is_gate: bool = True,
) -> Decision:
    """Decide on the paired seeds at a declared look, or with `is_gate=False` at an undeclared one.

    Raises `ConfigError` for a new look if a suite changed since the declaration, and the errors of
    `record_decision`.
    """
    num_seeds = len(baseline_runs)
    recorded = recorded_looks(campaign.folder)
    if (candidate, num_seeds, is_gate) not in recorded:
        require_suites_as_declared(campaign.record, campaign.config)
    # An unscheduled look precedes the gate with as many seeds.
    earlier = [look for look in sorted(recorded) if look[0] == candidate and look[1:] < (num_seeds, is_gate)]
    name = f"{'look' if is_gate else 'unscheduled look'} at {number_of(num_seeds, 'seed')}"
    plan, looks = campaign.config.look_plan(), [recorded[key].look for key in earlier]
    look = take_look(plan, looks, name=name, num_seeds=num_seeds, is_gate=is_gate)
    facts = gather(campaign, candidate, look, baseline_runs, candidate_runs, scoring)
    return record_decision(campaign, decide(campaign.config, campaign.record, facts), scoring.ledger)


def decide_again(campaign: OpenCampaign, scoring: Scoring) -> list[Decision]:
    """Repeat every recorded decision. Raises `DamagedDataError` if one does not follow from the results any
    more."""
    runs = {arm: score_finished_runs(campaign, arm, scoring) for arm in campaign.config.arm_names}
    decisions = []
    for recorded in recorded_decisions(campaign.folder):
        num_seeds = recorded.look.num_seeds
        decision = take_look_at(
            campaign,
            recorded.candidate,
            runs[campaign.config.baseline][:num_seeds],
            runs[recorded.candidate][:num_seeds],
            scoring,
            is_gate=recorded.look.is_gate,
        )
        decisions.append(decision)
    return decisions


def look_now(campaign: OpenCampaign, scoring: Scoring) -> list[Decision]:
    """Take an unscheduled look at every undecided candidate; it is recorded and spends error rate."""
    closed = {decision.candidate for decision in recorded_decisions(campaign.folder) if decision.is_final}
    baseline = score_finished_runs(campaign, campaign.config.baseline, scoring)
    decisions = []
    for candidate in campaign.config.candidates:
        runs = score_finished_runs(campaign, candidate.name, scoring)
        num_seeds = min(len(runs), len(baseline))
        if candidate.name in closed or num_seeds in campaign.config.all_looks:
            continue
        if num_seeds < 2:
            raise ConfigError(
                f"campaign '{campaign.config.name}': {number_of(num_seeds, 'paired seed')} of {candidate.name} "
                "finished so far; a look needs 2. Continue with 'assay decide run'."
            )
        pairs = baseline[:num_seeds], runs[:num_seeds]
        decisions.append(take_look_at(campaign, candidate.name, *pairs, scoring, is_gate=False))
    return decisions
