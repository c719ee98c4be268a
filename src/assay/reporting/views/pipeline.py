"""A pipeline's runs, stage by stage and seed by seed."""

from pathlib import Path
from typing import Any

from assay.records.exported_model import EXPORT_FILE, ExportedModel
from assay.records.pipeline import Pipeline
from assay.records.run import Run, RunStatus
from assay.reporting.views.runs.run_list import Selection, run_lines
from assay.reporting.views.view import UtcTime, View
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.store.model_folder import weights_and_config_digest


class StageRun(View):
    """A stage with one seed."""

    stage: str
    seed: int
    run_id: str
    status: RunStatus | None = None
    step: int = 0
    total_steps: int | None = None
    started_from: str | None = None
    """`RUN@STEP`."""
    started_from_digest: str | None = None
    """For those weights."""
    device_hours: float = 0.0


class PipelineView(View):
    """A pipeline."""

    pipeline: str
    created: UtcTime
    runs: tuple[StageRun, ...]
    """In the file's order, then by seed."""
    device_hours: float


def stage_runs(pipeline: Pipeline) -> list[str]:
    """Return the ids of the pipeline's runs, including those that have not started."""
    return [run_id for _, _, run_id in _all(pipeline.config, pipeline.name)]


def pipeline_view(pipeline: Pipeline, home: Home, ledger: Ledger) -> PipelineView:
    """Return the current view of the pipeline."""
    lines = {run_line.run_id: run_line for run_line in run_lines(ledger, Selection(text=pipeline.name))}
    runs = []
    for stage, seed, run_id in _all(pipeline.config, pipeline.name):
        line = lines.get(run_id)
        began = _parent_export(home.run(run_id)) if home.has_run(run_id) else None
        runs.append(
            StageRun(
                stage=stage,
                seed=seed,
                run_id=run_id,
                status=line.status if line else None,
                step=line.step if line else 0,
                total_steps=line.total_steps if line else None,
                started_from=f"{began.run_id}@{began.step}" if began else None,
                started_from_digest=began.weights_digest if began else None,
                device_hours=line.device_hours if line else 0.0,
            )
        )
    return PipelineView(
        pipeline=pipeline.name,
        created=pipeline.created_s,
        runs=tuple(runs),
        device_hours=sum(run.device_hours for run in runs),
    )


def _all(config: dict[str, Any], name: str) -> list[tuple[str, int, str]]:
    """Return (stage, seed, run id) of every run."""
    seeds = range(config["first_seed"], config["first_seed"] + config["seeds"])
    return [(stage["name"], seed, f"{name}-{stage['name']}-s{seed}") for stage in config["stages"] for seed in seeds]


def _parent_export(run: Run) -> ExportedModel | None:
    """Return the export that the run started from; None if it started from another model. Compares the digest
    of the files as they were read."""
    model = run.recipe["method"].get("model") or {}
    record = Path(str(model.get("path", ""))) / EXPORT_FILE
    if not record.is_file():
        return None
    exported = ExportedModel.from_json(record.read_bytes(), source=record)
    was = run.folders.get("method.model.path")
    now = weights_and_config_digest({file.path: file.sha256 for file in exported.files})
    return exported if was in (None, now) else None
