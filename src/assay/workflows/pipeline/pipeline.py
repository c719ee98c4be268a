"""Runs a pipeline: stage after stage, each with all seeds; then the last models leave, and stages are compared.

    sft s0, s1 --> reward s0, s1 --> grpo s0, s1 --> models/grpo-s0-step300 ..   (plain folders)
                                                 --> the campaign's look, its memo

Nothing is in memory only. What is finished is found in the runs' logs, so a pipeline that was killed at any
point goes on by being run again: no stage is trained twice.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from assay.base.units import duration_text
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.campaign import result_text
from assay.workflows.campaign.look import look_at
from assay.workflows.campaign.memo import write_memo
from assay.workflows.campaign.scores import scored_run
from assay.workflows.campaign.sealed_holdout import Bench
from assay.workflows.campaign.train import ArmRun, CampaignStopped, Training, Workplace, device_seconds_of
from assay.workflows.pipeline.config import StageCommit
from assay.workflows.pipeline.folder import OpenPipeline
from assay.workflows.pipeline.stages import stage_model, stages_of

Say = Callable[[str], None]


class PipelineResult(NamedTuple):
    """What came of it."""

    models: tuple[Path, ...]
    """The last stage's, seed by seed; none where it ended before."""
    memo: Path | None
    """The page; None where nothing is compared."""
    stopped_by: str | None
    """Why it ended before all stages were trained: the budget, or a request to stop. None: it did not."""


def run_pipeline(pipeline: OpenPipeline, ledger: Ledger, *, place: Workplace, say: Say) -> PipelineResult:
    """Train what is not trained yet, export the last stage's models, compare what is to be compared."""
    config = pipeline.given.config
    training = Training(stages_of(pipeline), ledger, place)
    trained: dict[tuple[str, int], ArmRun] = {}
    try:
        for stage in config.stages:
            for each in training.finish([(stage.name, seed) for seed in config.seed_numbers]):
                trained[each.arm, each.seed] = each
                evaluation = ledger.evaluations(each.run.run_id)[-1]
                cost = duration_text(device_seconds_of(each.run.run_id, ledger))
                say(
                    f"stage {each.arm}, seed {each.seed}: run {each.run.run_id} is finished, weights "
                    f"{evaluation.weights_digest[:12]}…, {cost} of device time"
                )
    except CampaignStopped as stopped:
        return PipelineResult((), None, str(stopped))
    last = StageCommit(config.stages[-1].name, is_best=False)
    models = tuple(stage_model(pipeline, last, seed) for seed in config.seed_numbers)
    return PipelineResult(models, _compared(pipeline, trained, ledger, place, say), None)


def _compared(
    pipeline: OpenPipeline, trained: dict[tuple[str, int], ArmRun], ledger: Ledger, place: Workplace, say: Say
) -> Path | None:
    """The memo, after one look at all seeds: every later stage beside the first one."""
    if (campaign := pipeline.campaign) is None:
        return None
    ledger.record_campaign(campaign.record)
    runs = {}
    for arm in campaign.config.arm_names:
        runs[arm] = [
            scored_run(campaign, trained[arm, seed], ledger, clock=place.clock)
            for seed in campaign.config.seed_numbers
        ]
        for scored in runs[arm]:
            say(f"{arm}, seed {scored.record.seed}: {result_text(campaign, scored)}")
    baseline, *others = campaign.config.arm_names
    for name in others:
        say(look_at(campaign, name, runs[baseline], runs[name], Bench(ledger, place.clock)).sentence)
    return write_memo(campaign).page
