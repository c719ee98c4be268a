"""A run's benchmark scores over its checkpoints."""

from collections.abc import Sequence

from assay.records.benchmark import BenchmarkResult
from assay.statistics.benchmark_history import BenchmarkHistory


class HistoryLine(BenchmarkResult):
    """A result with the best value so far."""

    is_best_so_far: bool
    best_value: float


def history_lines(histories: Sequence[BenchmarkHistory]) -> list[HistoryLine]:
    """Return the results by benchmark and step."""
    return [
        HistoryLine(**dict(point.result), is_best_so_far=point.is_best_so_far, best_value=point.best_value)
        for history in histories
        for point in history.points
    ]
