"""A run's benchmark scores over its checkpoints, and the best score so far.

The best of many checkpoints looks better than it is, because it was picked. A history therefore shows when the best
score moved, but decisions compare declared checkpoints over seeds.
"""

from collections.abc import Sequence
from typing import NamedTuple

from assay.records.benchmark import BenchmarkResult


class HistoryPoint(NamedTuple):
    """One checkpoint's result."""

    result: BenchmarkResult
    is_best_so_far: bool
    best_value: float
    """The best score up to this checkpoint."""


class BenchmarkHistory(NamedTuple):
    """Results of one version of a benchmark over the checkpoints of one run."""

    benchmark: str
    version_sha256: str
    points: tuple[HistoryPoint, ...]
    """Ordered by step."""


def benchmark_histories(results: Sequence[BenchmarkResult]) -> list[BenchmarkHistory]:
    """Group one run's results by benchmark version; incomplete results form histories of their own."""
    by_version: dict[tuple[str, str, bool], list[BenchmarkResult]] = {}
    for result in results:
        key = (result.benchmark, result.version_sha256(), bool(result.incomplete_reason))
        by_version.setdefault(key, []).append(result)
    return [
        BenchmarkHistory(benchmark, version, _points(sorted(found, key=lambda result: result.step)))
        for (benchmark, version, _), found in sorted(by_version.items())
    ]


def _points(results: Sequence[BenchmarkResult]) -> tuple[HistoryPoint, ...]:
    points: list[HistoryPoint] = []
    for result in results:
        value = result.score.value
        before = points[-1].best_value if points else None
        is_better = before is None or (value > before if result.higher_is_better else value < before)
        points.append(HistoryPoint(result, is_better, value if is_better or before is None else before))
    return tuple(points)
