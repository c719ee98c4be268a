"""A run's scores over its checkpoints, as one list."""

from collections.abc import Sequence

from assay.records.benchmark import BenchmarkResult
from assay.statistics.benchmark_history import BenchmarkHistory


class HistoryLine(BenchmarkResult):
    """A result with the best value so far."""

    is_best_so_far: bool
    """Better than all earlier checkpoints."""
    best_value: float


def history_lines(histories: Sequence[BenchmarkHistory]) -> list[HistoryLine]:
    """Benchmark by benchmark, each by step."""
    return [
        HistoryLine(**dict(point.result), is_best_so_far=point.is_best_so_far, best_value=point.best_value)
        for history in histories
        for point in history.points
    ]
