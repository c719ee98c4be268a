"""Benchmark scores over checkpoints: all checkpoints x all benchmarks, and line by line with the best so far."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pydantic_core import from_json

from assay.base.errors import ConfigError
from assay.base.shapes import Bool, Float64, Int
from assay.records.benchmark import BenchmarkResult
from assay.statistics.benchmark_history import BestOfMany, best_of_many, frontier
from assay.store.ledger.ledger import Ledger, parsed


class HistoryLine(BenchmarkResult):
    """A result with the best value so far."""

    is_best_so_far: bool
    best_value: float
    luckiest_low: float | None = None
    """The best score of the history by chance alone, if all its checkpoints were as good as their mean: the ends of a
    95% interval. Null if fewer than two scores have an interval."""
    luckiest_high: float | None = None
    may_be_chance: bool | None = None
    """The best score is not beyond that interval."""
    num_candidates: int | None = None
    """Checkpoints of the history among which the truly best is with 95% confidence."""


class MatrixRow(NamedTuple):
    """A checkpoint."""

    run_id: str
    step: int
    weights_digest: str
    candidate: str
    seed: int


class MatrixColumn(NamedTuple):
    """A version of a benchmark; incomplete results are a column of their own."""

    benchmark: str
    version_sha256: str
    is_incomplete: bool


@dataclass(frozen=True)
class ColumnScores:
    """All scores of a column, of one run by step, of several by the time of evaluation; arrays of equal length."""

    column: MatrixColumn
    unit: str
    higher_is_better: bool
    num_items: int
    rows: Int[np.ndarray, "score"]
    """Index of the checkpoint in the matrix."""
    values: Float64[np.ndarray, "score"]
    lows: Float64[np.ndarray, "score"]
    """NaN without an interval."""
    highs: Float64[np.ndarray, "score"]
    evaluated_s: Float64[np.ndarray, "score"]
    best_values: Float64[np.ndarray, "score"]
    is_best_so_far: Bool[np.ndarray, "score"]
    best_of_many: BestOfMany | None

    @property
    def best(self) -> int:
        """Index of the best score."""
        return int(np.flatnonzero(self.is_best_so_far)[-1])


@dataclass(frozen=True)
class BenchmarkMatrix:
    """Checkpoints by run and step, and the scores of each benchmark."""

    rows: Sequence[MatrixRow]
    columns: Sequence[ColumnScores]


def benchmark_matrix(
    ledger: Ledger, *, benchmark: str | None = None, is_selected: Callable[[MatrixRow], bool] = lambda row: True
) -> BenchmarkMatrix:
    """Return the scores of all selected checkpoints, of all benchmarks or of one; records are not validated."""
    query = "SELECT version_sha256, record FROM benchmark_results"
    with ledger.reading() as connection:
        if benchmark is None:
            found = connection.execute(query)
        else:
            found = connection.execute(f"{query} WHERE benchmark = :benchmark", {"benchmark": benchmark})
    return matrix_of([(version, parsed(score_row, text)) for version, text in found], is_selected)


def matrix_of(
    scores: Sequence[tuple[str, "ScoreRow"]], is_selected: Callable[[MatrixRow], bool] = lambda row: True
) -> BenchmarkMatrix:
    """Return the selected ones of scores, each with the digest of its benchmark's version."""
    selected = sorted(filter(is_selected, {score.row for _, score in scores}))
    # A suite of the recipe and one of a campaign may name the candidate of a checkpoint differently.
    rows = list({row[:3]: row for row in reversed(selected)}.values())[::-1]
    position = {row[:3]: at for at, row in enumerate(rows)}
    index = {row: position[row[:3]] for row in selected}
    by_column: dict[tuple[str, str, bool], list[ScoreRow]] = defaultdict(list)
    for version, score in scores:
        if score.row in index:
            by_column[score.benchmark, version, score.is_incomplete].append(score)
    has_one_run = len({row.run_id for row in rows}) == 1
    columns = [
        _column(MatrixColumn(*column), by_column[column], index, has_one_run=has_one_run)
        for column in sorted(by_column)
    ]
    return BenchmarkMatrix(rows, columns)


def history_lines(matrix: BenchmarkMatrix, results: Sequence[BenchmarkResult]) -> list[HistoryLine]:
    """Return the results with scores in a matrix, benchmark by benchmark in its order."""
    known = {(result.run_id, result.step, result.benchmark, result.version_sha256()): result for result in results}
    return [
        HistoryLine(
            **dict(known[row.run_id, row.step, item.column.benchmark, item.column.version_sha256]),
            is_best_so_far=bool(item.is_best_so_far[index]),
            best_value=float(item.best_values[index]),
            luckiest_low=best_of_many and best_of_many.low,
            luckiest_high=best_of_many and best_of_many.high,
            may_be_chance=best_of_many and best_of_many.may_be_chance,
            num_candidates=best_of_many and best_of_many.num_candidates,
        )
        for item in matrix.columns
        for best_of_many in [item.best_of_many]
        for index, row in enumerate(matrix.rows[at] for at in item.rows)
    ]


def runs_of_campaign(ledger: Ledger, campaign: str) -> Callable[[str], bool]:
    """Return whether a run, by its id, belongs to a campaign, or to any if the name is empty. Raises `ConfigError` if
    there is no such campaign."""
    if not campaign:
        return lambda run_id: True
    declared = {item.name: item for item in ledger.campaigns()}
    if campaign not in declared:
        raise ConfigError(f"no campaign '{campaign}'. 'assay decide list' names those that there are.")
    run_ids = declared[campaign].run_ids()
    return lambda run_id: run_id in run_ids


def last_scores(ledger: Ledger) -> list[tuple[str, "ScoreRow"]]:
    """Return the score of each run's last checkpoint on each version of a benchmark, with the version's digest."""
    key = "run_id, benchmark, version_sha256"
    query = (
        f"SELECT version_sha256, record FROM benchmark_results JOIN (SELECT {key}, MAX(step) AS step FROM "
        f"benchmark_results GROUP BY {key}) AS last USING ({key}, step) ORDER BY {key}"
    )
    with ledger.reading() as connection:
        return [(version, parsed(score_row, text)) for version, text in connection.execute(query)]


class ScoreRow(NamedTuple):
    """What tables of many results show of each."""

    row: MatrixRow
    benchmark: str
    unit: str
    higher_is_better: bool
    is_incomplete: bool
    num_items: int
    evaluated_s: float
    value: float
    low: float | None
    high: float | None


def score_row(text: str, *, source: str) -> ScoreRow:
    """Read the record of a `BenchmarkResult` without validation."""
    tree = from_json(text)
    if tree["version"] != BenchmarkResult.version:
        tree = BenchmarkResult.from_tree(tree, source=source).to_tree()
    return ScoreRow(
        MatrixRow(*(tree[name] for name in MatrixRow._fields)),
        tree["benchmark"],
        tree["unit"],
        tree["higher_is_better"],
        bool(tree["incomplete_reason"]),
        tree["num_items"],
        tree["evaluated_s"],
        *(tree["score"][name] for name in ("value", "low", "high")),
    )


def _column(
    column: MatrixColumn, scores: Sequence[ScoreRow], index: Mapping[MatrixRow, int], *, has_one_run: bool
) -> ColumnScores:
    rows = np.array([index[score.row] for score in scores])
    times = np.array([score.evaluated_s for score in scores])
    order = np.argsort(rows) if has_one_run else np.lexsort((rows, times))
    numbers = ([score.value for score in scores], [score.low for score in scores], [score.high for score in scores])
    values, lows, highs = (np.array(found, dtype=float)[order] for found in numbers)  # None becomes NaN
    higher_is_better = scores[0].higher_is_better
    best_values, is_best_so_far = frontier(values, higher_is_better=higher_is_better)
    return ColumnScores(
        column=column,
        unit=scores[0].unit,
        higher_is_better=higher_is_better,
        num_items=scores[0].num_items,
        rows=rows[order],
        values=values,
        lows=lows,
        highs=highs,
        evaluated_s=times[order],
        best_values=best_values,
        is_best_so_far=is_best_so_far,
        best_of_many=best_of_many(values, lows, highs, higher_is_better=higher_is_better),
    )
