"""Use a run's predictions as a benchmark: one score per validation row.

The evaluation that ends every run then serves as evidence without scoring rows twice, in the same per-item records as
any other benchmark.

A classifier's rows are scored here, higher is better; rows of other methods use the score that compares their runs. The
AUC is not a mean over rows, but its *influence values* (DeLong's placements, centered and scaled) have the AUC as their
mean and DeLong's variance as their variance. Everything that holds for means (pairing, seeds, clusters) therefore holds
for it:

    positive:  AUC + n / n_pos (share of negatives that it beats - AUC)
    negative:  AUC + n / n_neg (share of positives that beat it - AUC)
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.base.digest import sha256_of_bytes, sha256_of_json
from assay.base.errors import ConfigError
from assay.decision.config import PredictionsBenchmark
from assay.records.benchmark import BenchmarkResult
from assay.records.evaluation import ACCURACY, AUC, LOG_LOSS, AnyEvaluation, Metric, ScoreEvaluation
from assay.statistics.benchmark_items import ItemScore, items_bytes, items_table, save_result, summarise
from assay.statistics.classifier.auc import placements
from assay.statistics.classifier.rows import ScoredRows, scores_of
from assay.statistics.predictions import CLUSTER

METRICS = {
    "correct": Metric(name="correct", unit="share", higher_is_better=True),
    "ranking": AUC,
    "log_likelihood": Metric(name="log_likelihood", unit="nats per row", higher_is_better=True),
}
MIN_LIKELIHOOD = 1e-16
"""Minimum likelihood of a true class: a confident error costs 37 nats, not infinity."""


MAX_LISTED = 5
"""Values of a column that a message lists."""


def row_scores(rows: ScoredRows, score: str) -> npt.NDArray[np.float64]:
    """Return each row's score. `ranking` needs both classes."""
    if score == "ranking":
        return _influence_values(rows)
    of_truth = np.where(rows.is_positive, rows.probabilities, 1.0 - rows.probabilities)
    if score == "log_likelihood":
        in_nats: npt.NDArray[np.float64] = np.log(np.maximum(of_truth, MIN_LIKELIHOOD))
        return in_nats
    is_right: npt.NDArray[np.bool_] = (rows.probabilities >= 0.5) == rows.is_positive
    return is_right.astype(np.float64)


def definition_sha256(benchmark: PredictionsBenchmark, *, dataset: str, split: str) -> str:
    """Return the SHA-256 of the rows (their dataset's fingerprint and split) and of the benchmark's definition."""
    return sha256_of_json({"dataset": dataset, "split": split, "benchmark": benchmark.model_dump(mode="json")})


def result_of_predictions(
    benchmark: PredictionsBenchmark,
    predictions: Any,
    evaluation: AnyEvaluation,
    *,
    arm: str,
    seed: int,
    evaluated_s: float,
    folder: Path,
) -> BenchmarkResult:
    """Score a run's predictions and write the result to `folder`. Raises what `scored_predictions` raises."""
    result, items = scored_predictions(benchmark, predictions, evaluation, arm=arm, seed=seed, evaluated_s=evaluated_s)
    save_result(folder, result, items_bytes(items))
    return result


def scored_predictions(
    benchmark: PredictionsBenchmark,
    predictions: Any,
    evaluation: AnyEvaluation,
    *,
    arm: str,
    seed: int,
    evaluated_s: float,
) -> tuple[BenchmarkResult, Any]:
    """Score a run's predictions (a table of `read_predictions`); return the result and the table of its items.

    Raises `ConfigError` if a column or a class is missing, or no row is selected.
    """
    chosen = predictions.filter(selected_rows(benchmark, predictions))
    if not chosen.num_rows:
        raise empty_selection_error(benchmark, predictions)
    metric, scores = _scored(benchmark, chosen, evaluation)
    item_scores = _items(benchmark, chosen, scores)
    items = items_table(item_scores)
    found = summarise(items, metric.unit)
    result = BenchmarkResult(
        run_id=evaluation.run_id,
        candidate=arm,
        seed=seed,
        step=evaluation.step,
        weights_digest=evaluation.weights_digest,
        benchmark=benchmark.name,
        benchmark_sha256=definition_sha256(benchmark, dataset=evaluation.dataset_fingerprint, split=evaluation.split),
        grader_sha256=sha256_of_json({"score": benchmark.score}),
        prompt_sha256=sha256_of_json("the row itself"),
        num_items=items.num_rows,
        num_failed=found.num_failed,
        score=found.score,
        unit=metric.unit,
        higher_is_better=metric.higher_is_better,
        could_detect=found.could_detect,
        # The device time of the predictions belongs to the run's own evaluation.
        device_s=0.0,
        evaluated_s=evaluated_s,
        items_sha256=sha256_of_bytes(items_bytes(items)),
    )
    return result, items


def _scored(
    benchmark: PredictionsBenchmark, chosen: Any, evaluation: AnyEvaluation
) -> tuple[Metric, npt.NDArray[np.float64]]:
    """Return the metric, and each row's score."""
    if isinstance(evaluation, ScoreEvaluation):
        return _own_score(benchmark, chosen, evaluation)
    if benchmark.score == "own":
        raise ConfigError(_no_such_score(benchmark, evaluation, "Use score: correct, ranking or log_likelihood."))
    rows = scores_of(chosen, source=f"predictions of {evaluation.run_id}")
    if benchmark.score == "ranking" and not rows.has_two_classes:
        raise ConfigError(
            f"benchmark '{benchmark.name}': all {rows.num_rows:,} rows have one label, so nothing can be "
            "ranked. Use score: correct."
        )
    return METRICS[benchmark.score], row_scores(rows, benchmark.score)


def _own_score(
    benchmark: PredictionsBenchmark, chosen: Any, evaluation: ScoreEvaluation
) -> tuple[Metric, npt.NDArray[np.float64]]:
    """Return the score that compares runs; for classes also `correct` and `log_likelihood`."""
    named = {measured.metric.name: measured.metric for measured in evaluation.overall.measured}
    if benchmark.score == "correct" and ACCURACY.name in named:
        return METRICS["correct"], _column_of_scores(chosen, ACCURACY.name)
    if benchmark.score == "log_likelihood" and LOG_LOSS.name in named:
        return METRICS["log_likelihood"], -_column_of_scores(chosen, LOG_LOSS.name)
    metric = evaluation.headline.metric if benchmark.score == "own" else named.get(benchmark.score)
    if metric is None:
        raise ConfigError(_no_such_score(benchmark, evaluation, f"Use score: own, {', '.join(named)}."))
    return metric, _column_of_scores(chosen, metric.name)


def _column_of_scores(table: Any, name: str) -> npt.NDArray[np.float64]:
    return np.asarray(table[name].to_numpy(), np.float64)


def _no_such_score(benchmark: PredictionsBenchmark, evaluation: AnyEvaluation, hint: str) -> str:
    return (
        f"benchmark '{benchmark.name}': score: {benchmark.score} is not among the scores of the rows of run "
        f"{evaluation.run_id}, which is measured by {evaluation.headline.metric.name}. {hint}"
    )


def _influence_values(rows: ScoredRows) -> npt.NDArray[np.float64]:
    placement = placements(rows)
    values = np.empty(rows.num_rows)
    num_negative = rows.num_rows - rows.num_positive
    values[rows.is_positive] = (placement.positive - placement.auc) * (rows.num_rows / rows.num_positive)
    values[~rows.is_positive] = (placement.negative - placement.auc) * (rows.num_rows / num_negative)
    return values + placement.auc


def selected_rows(benchmark: PredictionsBenchmark, predictions: Any) -> npt.NDArray[np.bool_]:
    """Return the mask of the benchmark's rows. Raises `ConfigError` if a column is missing."""
    mask = np.ones(predictions.num_rows, dtype=bool)
    for column, target in benchmark.where.items():
        mask &= np.array([value_matches(value, target) for value in _column(benchmark, predictions, column)])
    return mask


def value_matches(value: Any, target: str | bool | int | None) -> bool:
    """Return whether a row's value equals that of `where`.

    YAML's `true` matches booleans, the number 1 and the text `True`; a text also matches a boolean.
    """
    if value is None or target is None:
        return value is target
    if isinstance(value, bool) or isinstance(target, bool):
        as_number = {str(int(target))} if isinstance(target, bool) else set()
        return str(value).lower() in {str(target).lower(), *as_number}
    return str(value) == str(target)


def empty_selection_error(benchmark: PredictionsBenchmark, rows: Any) -> ConfigError:
    """Return an error for a `where` that selects no row, with the values that occur."""
    written = " with ".join(f"{name}: {_shown(target)}" for name, target in benchmark.where.items())
    held = "; ".join(f"{name} holds {_values_text(_column(benchmark, rows, name))}" for name in benchmark.where)
    return ConfigError(
        f"benchmark '{benchmark.name}': no validation row has {written}. Choose values that occur: {held}."
    )


def _values_text(values: list[Any]) -> str:
    """List the values, the most frequent first."""
    found = [_shown(value) for value, _ in Counter(values).most_common()]
    more = f" and {len(found) - MAX_LISTED:,} more" if len(found) > MAX_LISTED else ""
    return ", ".join(found[:MAX_LISTED]) + more


def _shown(value: Any) -> str:
    """Format a value as YAML and `assay data show` do."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _items(benchmark: PredictionsBenchmark, table: Any, scores: npt.NDArray[np.float64]) -> list[ItemScore]:
    ids = [str(row_id) for row_id in table["row_id"].to_pylist()]
    is_alone = benchmark.cluster is None or (benchmark.cluster == CLUSTER and CLUSTER not in table.column_names)
    clusters = ids if is_alone else [str(value) for value in _column(benchmark, table, str(benchmark.cluster))]
    if not is_alone and len(set(clusters)) < 2:
        raise ConfigError(
            f"benchmark '{benchmark.name}': its {len(ids):,} rows are one cluster ({benchmark.cluster}), so "
            "its interval is unknown. Hold out more groups (data.split), or declare a "
            "campaign with cluster: null, in which each row counts alone."
        )
    return [
        ItemScore(item_id, cluster, score)
        for item_id, cluster, score in zip(ids, clusters, scores.tolist(), strict=True)
    ]


def _column(benchmark: PredictionsBenchmark, table: Any, name: str) -> list[Any]:
    if name not in table.column_names:
        raise ConfigError(
            f"benchmark '{benchmark.name}': the predictions have no column '{name}', only "
            f"{', '.join(table.column_names)}. Metadata columns are those that the method reads."
        )
    found: list[Any] = table[name].to_pylist()
    return found
