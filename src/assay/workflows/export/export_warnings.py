"""Warnings about a commit's model from the records in the run's folder; they are exported with the model."""

from pathlib import Path

from assay.records.commit import Commit
from assay.records.evaluation import AnyEvaluation
from assay.records.run import Run
from assay.statistics.predictions import EVALUATION_FILE, evaluation_folder, load_evaluation
from assay.statistics.warnings import ModelNumbers, StepSeries, Warned, is_watched
from assay.store.metrics.recorded import recorded_series
from assay.workflows.run import VALIDATION


def warnings_of_commit(run: Run, commit: Commit) -> list[Warned]:
    """Return the warnings of a commit and of the evaluation of its weights."""
    found = evaluation_of_commit(run, commit)
    return recorded_numbers(run, found).warnings_at(commit.step)


def evaluation_of_commit(run: Run, commit: Commit) -> AnyEvaluation | None:
    """Return the evaluation of the commit on the validation rows; None if there is none."""
    folder = evaluation_folder(Path(run.run_dir), step=commit.step, split=VALIDATION)
    return load_evaluation(folder) if (folder / EVALUATION_FILE).is_file() else None


def recorded_numbers(run: Run, evaluation: AnyEvaluation | None) -> ModelNumbers:
    """Return the numbers of the committed steps and of one evaluation."""
    recorded = recorded_series(Path(run.run_dir), lambda name: name == "loss" or is_watched(name))
    series = {name: StepSeries.of(values) for name, values in recorded.items()}
    losses = series.pop("loss", StepSeries.of({}))
    return ModelNumbers(losses, series, [] if evaluation is None else [evaluation])
