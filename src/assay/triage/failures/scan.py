"""Scans all regions of a table and of null tables at once.

The table's best score is compared with the best scores of null tables, which accounts for testing all
regions. Observed and null failures are columns of one matrix, so a region's counts in all tables are one
matrix product.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np

from assay.base.shapes import Float32, Float64, Int64
from assay.triage.attempts.table import AttemptTable
from assay.triage.failures.contrast import Contrast
from assay.triage.failures.regions import Regions, all_regions
from assay.triage.failures.unit_correlation import likeness, null_failures

NUM_NULLS, NUM_NULLS_LARGE, LARGE_ROWS = 199, 99, 20_000
"""Number of null tables, and of those for tables with this many rows."""
NUM_BEST = 80
"""Number of regions examined further."""


class Region(NamedTuple):
    """A region with a high score."""

    score: float
    llr: float
    share: float
    factors: tuple[int, ...]
    """Indices of the table's factors."""
    values: tuple[int, ...]
    rows: Int64[np.ndarray, "member"]


class Scan(NamedTuple):
    """The best regions of a table, best first, and the best scores of null tables."""

    regions: list[Region]
    null_scores: Float64[np.ndarray, "table"]
    correlation: float
    weights: Float64[np.ndarray, "row"]

    def p_value(self, score: float) -> float:
        """Return the share of null tables with at least this score."""
        return float((1 + (self.null_scores >= score).sum()) / (1 + len(self.null_scores)))


def scan(table: AttemptTable, baseline: Float64[np.ndarray, "row"] | None, *, rng: np.random.Generator) -> Scan:
    """Scan a table; `baseline` has expected failures of each row from an earlier window, None compares with
    the rest."""
    size = table.size()
    expected = size * (table.failures.sum() / size.sum()) if baseline is None else baseline
    expected = np.minimum(expected, table.attempts)
    fitted = likeness(table, expected)
    null_rate = expected * (table.failures.sum() / max(expected.sum(), 1e-12))
    num_null_tables = NUM_NULLS if table.num_rows <= LARGE_ROWS else NUM_NULLS_LARGE
    columns = np.empty((table.num_rows, 1 + num_null_tables), np.float32)
    columns[:, 0] = table.failures
    columns[:, 1:] = null_failures(table, null_rate, fitted.correlation, num_tables=num_null_tables, rng=rng)
    columns *= fitted.weights[:, None].astype(np.float32)
    weighted = fitted.weights * size
    weighted_baseline = None if baseline is None else fitted.weights * baseline
    contrast = Contrast(
        failures=columns.sum(axis=0, dtype=np.float64).astype(np.float32),
        size=float(weighted.sum()),
        is_count=table.exposure is None,
        baseline=weighted_baseline,
    )
    found, null_scores = _best(table, contrast, columns, weighted)
    return Scan(found, null_scores, fitted.correlation, fitted.weights)


def _best(
    table: AttemptTable,
    contrast: Contrast,
    columns: Float32[np.ndarray, "row table"],
    weighted: Float64[np.ndarray, "row"],
) -> tuple[list[Region], Float64[np.ndarray, "null"]]:
    null_scores = np.full(columns.shape[1] - 1, -np.inf)
    best: list[tuple[float, int, Region]] = []
    number = 0
    for regions in all_regions(table):
        before = None if contrast.baseline is None else regions.members @ contrast.baseline
        contrasted = contrast.of_regions(regions.members @ columns, regions.members @ weighted, before)
        score = contrasted.score()
        null_scores = np.maximum(null_scores, score[:, 1:].max(axis=0))
        ours = score[:, 0]
        for index in np.argsort(-ours, kind="stable")[:NUM_BEST]:
            if not np.isfinite(ours[index]) or (len(best) == NUM_BEST and ours[index] <= best[0][0]):
                break
            number += 1
            region = _region(regions, int(index), contrasted.llr[index, 0], contrasted.share[index, 0], ours[index])
            # Of equals, the one met first is kept: it has fewer factors.
            push = heapq.heappush if len(best) < NUM_BEST else heapq.heapreplace
            push(best, (region.score, -number, region))
    return [region for *_, region in sorted(best, key=lambda entry: (-entry[0], -entry[1]))], null_scores


def _region(regions: Regions, index: int, llr: Any, share: Any, score: Any) -> Region:
    begins, ends = regions.members.indptr[index : index + 2]
    rows = regions.members.indices[begins:ends].astype(np.int64)
    values = tuple(int(value) for value in regions.values[index])
    return Region(float(score), float(llr), float(share), regions.factors, values, rows)
