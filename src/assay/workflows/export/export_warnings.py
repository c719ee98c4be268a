"""What the numbers of a commit's model warn of, as the run's folder has them: it goes along with the model."""

from pathlib import Path

from assay.records.commit import Commit
from assay.records.evaluation import AnyEvaluation
from assay.records.run import Run
from assay.statistics.predictions import EVALUATION_FILE, evaluation_folder, load_evaluation
from assay.statistics.warnings import ModelNumbers, StepSeries, Warned, is_watched
from assay.store.metrics.recorded import recorded_series
from assay.workflows.run import VALIDATION


def warnings_of_commit(run: Run, commit: Commit) -> list[Warned]:
    """What was known of its model when the commit was made, and what the evaluation of its weights found."""
    found = evaluation_of_commit(run, commit)
    return recorded_numbers(run, found).warnings_at(commit.step)


def evaluation_of_commit(run: Run, commit: Commit) -> AnyEvaluation | None:
    """That of these weights on the run's validation rows; None where there is none."""
    folder = evaluation_folder(Path(run.run_dir), step=commit.step, split=VALIDATION)
    return load_evaluation(folder) if (folder / EVALUATION_FILE).is_file() else None


def recorded_numbers(run: Run, evaluation: AnyEvaluation | None) -> ModelNumbers:
    """Those of the steps that were kept, and of one evaluation."""
    recorded = recorded_series(Path(run.run_dir), lambda name: name == "loss" or is_watched(name))
    series = {name: StepSeries.of(values) for name, values in recorded.items()}
    losses = series.pop("loss", StepSeries.of({}))
    return ModelNumbers(losses, series, [] if evaluation is None else [evaluation])
