"""Read the points of a law from recorded runs: parameters from the recipe, tokens from the metrics, held-out loss.

The loss is the first metric of the last evaluation for which lower is better: a classifier's validation log-loss (nats
per row), the nats per token of SFT, or a reward model's log-loss. The training loss is not used, because it depends on
dropout and on the last steps of the schedule. All runs must be evaluated on one split of one dataset.
"""

from collections.abc import Sequence
from typing import NamedTuple

from assay.base.errors import DataError
from assay.records.evaluation import AnyEvaluation
from assay.records.run import Run
from assay.statistics.scaling.points import FLOP_PER_PARAMETER_AND_TOKEN, ScalingPoints, scaling_points
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.curves import metric_series
from assay.training.recipe import recipe_of

_MAX_POINTS = 1_000_000_000


class _Finished(NamedTuple):
    run: Run
    parameters: int
    tokens: float
    evaluation: AnyEvaluation
    loss: float


def points_of_runs(ledger: Ledger, run_ids: Sequence[str]) -> ScalingPoints:
    """Return one point per run. Raises `DataError` if a run lacks a number, or if the splits or losses differ."""
    finished = [_finished(ledger, run_id) for run_id in run_ids]
    rows = {run.evaluation.overall.num_rows for run in finished}
    splits = {str(recipe_of(run.run).data.split) for run in finished}
    if len(rows) > 1 or len(splits) > 1:
        raise DataError(
            f"the runs were evaluated on different rows: {len(splits)} splits, with "
            f"{' and '.join(f'{count:,}' for count in sorted(rows))} rows. One law needs one validation set; "
            "use runs with equal 'data.split'."
        )
    if len(losses := {run.evaluation.loss.metric.name for run in finished if run.evaluation.loss}) > 1:
        raise DataError(
            f"the runs are measured by different losses: {' and '.join(sorted(losses))}. One law needs one "
            "loss; use runs of one method."
        )
    return scaling_points(
        [run.loss for run in finished],
        parameters=[run.parameters for run in finished],
        tokens=[run.tokens for run in finished],
        source="runs",
    )


def scale_of_run(ledger: Ledger, run_id: str, scale: str) -> float:
    """Return `parameters`, `tokens` trained until the last evaluation, or `compute` (6 N D, FLOP) of a finished run.

    Raises `DataError` if the run does not record it.
    """
    run, evaluations = ledger.run(run_id), ledger.evaluations(run_id)
    if not evaluations:
        raise DataError(f"run {run_id} is not finished. Finish it with 'assay train --resume {run_id}'.")
    parameters = 1 if scale == "tokens" else _parameters(run)
    tokens = 1.0 if scale == "parameters" else _tokens(ledger, run_id, evaluations[-1].step)
    if tokens <= 0.0:
        raise DataError(f"run {run_id} has no record of its tokens (metric 'tokens'), so its scale is unknown.")
    return float(parameters) * tokens * (FLOP_PER_PARAMETER_AND_TOKEN if scale == "compute" else 1.0)


def _finished(ledger: Ledger, run_id: str) -> _Finished:
    run = ledger.run(run_id)
    evaluations = ledger.evaluations(run.run_id)
    if not evaluations:
        raise DataError(
            f"run {run.run_id} has not been evaluated, so it has no held-out loss. Finish it with "
            f"'assay train --resume {run.run_id}'."
        )
    last = evaluations[-1]
    if last.loss is None or last.loss.estimate is None:
        raise DataError(
            f"run {run.run_id} is measured by {last.headline.metric.name}, and has no loss to fit a law to."
        )
    tokens = _tokens(ledger, run.run_id, last.step)
    return _Finished(run, _parameters(run), tokens, last, last.loss.estimate.value)


def _tokens(ledger: Ledger, run_id: str, step: int) -> float:
    tokens = metric_series(ledger, run_id, "tokens", max_points=_MAX_POINTS)
    return float(tokens.values[tokens.steps <= step].sum())


def _parameters(run: Run) -> int:
    parameters = recipe_of(run).method.num_parameters()
    if parameters is None:
        raise DataError(
            f"run {run.run_id} started from a pretrained model, and the recipe does not hold its size. Write "
            "the points to a CSV file with columns parameters,tokens,loss."
        )
    return parameters
