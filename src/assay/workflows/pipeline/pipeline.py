"""Runs a pipeline stage by stage, each with all seeds; then exports the last models and compares stages.

    sft s0, s1 --> reward s0, s1 --> grpo s0, s1 --> models/grpo-s0-step300 ..   (plain folders)
                                                 --> the campaign's look, its memo

No state is only in memory: the runs' logs show what is finished. A pipeline that was killed at any point continues
when it is run again; no stage is trained twice.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from assay.base.units import duration_text
from assay.reporting.views.statements import decision_text
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.campaign import result_text, take_look_at
from assay.workflows.campaign.evidence import Scoring, score_run
from assay.workflows.campaign.memo import write_memo
from assay.workflows.campaign.train import (
    ArmRun,
    ArmScheduler,
    CampaignStopped,
    ExecutionSettings,
    device_seconds_of,
)
from assay.workflows.pipeline.config import StageCommit
from assay.workflows.pipeline.folder import OpenPipeline
from assay.workflows.pipeline.stages import stage_model, stage_plan

OnMessage = Callable[[str], None]


class PipelineResult(NamedTuple):
    """The result of a pipeline."""

    models: tuple[Path, ...]
    """Models of the last stage, seed by seed; empty if the pipeline ended early."""
    memo: Path | None
    """Page of the memo; None if nothing is compared."""
    stopped_by: str | None
    """Why the pipeline ended early: the budget, or a request to stop. None if it did not."""


def run_pipeline(
    pipeline: OpenPipeline, ledger: Ledger, *, execution: ExecutionSettings, on_message: OnMessage
) -> PipelineResult:
    """Train unfinished runs, export the models of the last stage, and compare stages."""
    config = pipeline.declared.config
    training = ArmScheduler(stage_plan(pipeline), ledger, execution)
    trained: dict[tuple[str, int], ArmRun] = {}
    try:
        for stage in config.stages:
            for run in training.finish([(stage.name, seed) for seed in config.seed_numbers]):
                trained[run.arm, run.seed] = run
                evaluation = ledger.evaluations(run.run.run_id)[-1]
                cost = duration_text(device_seconds_of(run.run.run_id, ledger))
                on_message(
                    f"stage {run.arm}, seed {run.seed}: run {run.run.run_id} is finished, weights "
                    f"{evaluation.weights_digest[:12]}…, {cost} of device time"
                )
    except CampaignStopped as stopped:
        return PipelineResult((), None, str(stopped))
    last = StageCommit(config.stages[-1].name, is_best=False)
    models = tuple(stage_model(pipeline, last, seed) for seed in config.seed_numbers)
    return PipelineResult(models, _compared(pipeline, trained, ledger, execution, on_message), None)


def _compared(
    pipeline: OpenPipeline,
    trained: dict[tuple[str, int], ArmRun],
    ledger: Ledger,
    execution: ExecutionSettings,
    on_message: OnMessage,
) -> Path | None:
    """Compare every later stage with the first one in one look at all seeds; return the memo."""
    if (campaign := pipeline.campaign) is None:
        return None
    ledger.record_campaign(campaign.record)
    runs, scoring = {}, Scoring(ledger, execution.clock)
    for arm in campaign.config.arm_names:
        runs[arm] = [score_run(campaign, trained[arm, seed], scoring) for seed in campaign.config.seed_numbers]
        for scored in runs[arm]:
            on_message(f"{arm}, seed {scored.record.seed}: {result_text(campaign, scored)}")
    baseline, *others = campaign.config.arm_names
    for name in others:
        on_message(decision_text(take_look_at(campaign, name, runs[baseline], runs[name], scoring)))
    return write_memo(campaign).page
