"""A run's scores over its checkpoints, and the best of them so far.

The best of many checkpoints looks better than it is: it was picked. So a history shows when the frontier
moved, and is no ground for a decision; a decision compares declared checkpoints over seeds.
"""

from collections.abc import Sequence
from typing import NamedTuple

from assay.records.benchmark import BenchmarkResult


class HistoryPoint(NamedTuple):
    """One checkpoint's result."""

    result: BenchmarkResult
    is_best_so_far: bool
    """Better than every checkpoint before it."""
    best_value: float
    """The frontier: the best score up to here."""


class BenchmarkHistory(NamedTuple):
    """One version of a benchmark over the checkpoints of one run."""

    benchmark: str
    version_sha256: str
    points: tuple[HistoryPoint, ...]
    """By step."""


def benchmark_histories(results: Sequence[BenchmarkResult]) -> list[BenchmarkHistory]:
    """The histories in one run's results, in any order: one for each version of each benchmark, and of those
    that were cut short."""
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
