"""Scans all regions of a table and of null tables at once, against the rest or against an earlier window.

Regions are scored by the log likelihood ratio, and by their share of the excess failures. Against the rest (a
persistent rate), region and rest have separate rates, compared with one common rate. Against a baseline (a surge), the
region has its own rate relative to the baseline, minus what the rest gains likewise. Regions rank by log LLR + log
share, so of two equally likely regions the one that explains more comes first. Counts are effective: attempts of one
unit are weighted down.

The table's best score is compared with the best scores of null tables, which accounts for testing all regions.
Observed and null failures are columns of one matrix, so a region's counts in all tables are one matrix product.

A baseline's rates by each factor are multiplied. Each rate is shrunk toward what the other factors predict, with a
weight of twenty attempts, so that rare values have no effect of their own.
"""

import heapq
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from assay.base.shapes import Bool, Float, Float32, Float64, Int64
from assay.triage.attempts.table import AttemptTable, Factor
from assay.triage.failures.regions import Regions, all_regions
from assay.triage.failures.unit_correlation import fit_correlation, null_failures

TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Totals of the whole table, and the choice of likelihood."""

    failures: Float[np.ndarray, "table"]
    size: float
    is_count: bool
    """Sizes are attempts, so failures cannot exceed them; otherwise sizes are exposures."""
    baseline: Float64[np.ndarray, "row"] | None
    """Expected failures of each row by the baseline; None against the rest."""

    def of_regions(
        self,
        failures: Float[np.ndarray, "region table"],
        sizes: Float[np.ndarray, "region"],
        baseline: Float[np.ndarray, "region"] | None,
    ) -> tuple[Any, Any]:
        """Return the likelihood ratio and share of each region and table; `baseline` has the regions' expected
        failures, if there is one."""
        sizes = sizes[:, None].astype(failures.dtype)
        rest, rest_size = np.maximum(self.failures - failures, 0.0), np.maximum(self.size - sizes, TINY)
        if baseline is None:
            excess = failures - sizes * (rest / rest_size)
            pooled = self._fit(self.failures, np.asarray(self.size, failures.dtype))
            llr = self._fit(failures, sizes) + self._fit(rest, rest_size) - pooled
            return np.where(excess > 0, llr, 0.0), excess / np.maximum(self.failures, TINY)
        assert self.baseline is not None
        before, all_before = baseline[:, None].astype(failures.dtype), float(self.baseline.sum())
        rest_before = np.maximum(all_before - before, TINY)
        excess, total = failures - before, self.failures - all_before
        gained = self._fit(failures, sizes) - self._at(failures, sizes, before)
        gained -= self._fit(rest, rest_size) - self._at(rest, rest_size, rest_before)
        return np.where(excess > 0, gained, 0.0), np.minimum(excess / np.maximum(total, 1.0), 1.0)

    def _fit(self, failures: Any, sizes: Any) -> Any:
        """Return the log likelihood at the best rate."""
        return self._at(failures, sizes, failures)

    def _at(self, failures: Any, sizes: Any, expected: Any) -> Any:
        """Return the log likelihood at the expected failures."""
        rate = np.maximum(expected, TINY) / sizes
        if not self.is_count:
            return failures * np.log(rate) - expected
        passed, left = np.maximum(sizes - failures, 0.0), np.maximum(1.0 - rate, 1e-7)
        return failures * np.log(rate) + passed * np.log(left)


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

    def inside(self, table: AttemptTable) -> Bool[np.ndarray, "row"]:
        """Return which rows of the scanned table are in the region."""
        found = np.zeros(table.num_rows, bool)
        found[self.rows] = True
        return found


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
    correlation, weights = fit_correlation(table, expected)
    null_rate = expected * (table.failures.sum() / max(expected.sum(), 1e-12))
    num_null_tables = NUM_NULLS if table.num_rows <= LARGE_ROWS else NUM_NULLS_LARGE
    columns = np.empty((table.num_rows, 1 + num_null_tables), np.float32)
    columns[:, 0] = table.failures
    columns[:, 1:] = null_failures(table, null_rate, correlation, num_tables=num_null_tables, rng=rng)
    columns *= weights[:, None].astype(np.float32)
    weighted = weights * size
    weighted_baseline = None if baseline is None else weights * baseline
    contrast = Contrast(
        failures=columns.sum(axis=0, dtype=np.float64).astype(np.float32), size=float(weighted.sum()),
        is_count=table.exposure is None, baseline=weighted_baseline,
    )  # fmt: skip
    found, null_scores = _best(table, contrast, columns, weighted)
    return Scan(found, null_scores, correlation, weights)


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
        llr, share = contrast.of_regions(regions.members @ columns, regions.members @ weighted, before)
        with np.errstate(divide="ignore"):  # minus infinity for a region that does not fail too often
            score = np.log(np.maximum(llr, 0.0)) + np.log(np.maximum(share, 0.0))
        null_scores = np.maximum(null_scores, score[:, 1:].max(axis=0))
        ours = score[:, 0]
        for index in np.argsort(-ours, kind="stable")[:NUM_BEST]:
            if not np.isfinite(ours[index]) or (len(best) == NUM_BEST and ours[index] <= best[0][0]):
                break
            number += 1
            region = _region(regions, int(index), llr[index, 0], share[index, 0], ours[index])
            # Of equals, the one met first is kept: it has fewer factors.
            push = heapq.heappush if len(best) < NUM_BEST else heapq.heapreplace
            push(best, (region.score, -number, region))
    return [region for *_, region in sorted(best, key=lambda entry: (-entry[0], -entry[1]))], null_scores


def _region(regions: Regions, index: int, llr: Any, share: Any, score: Any) -> Region:
    begins, ends = regions.members.indptr[index : index + 2]
    rows = regions.members.indices[begins:ends].astype(np.int64)
    values = tuple(int(value) for value in regions.values[index])
    return Region(float(score), float(llr), float(share), regions.factors, values, rows)


WEIGHT = 20.0
ROUNDS = 3
MOST = 0.98
"""Maximal expected share of failures in a row."""


def expected_failures(window: AttemptTable, before: AttemptTable) -> Float64[np.ndarray, "row"]:
    """Return the expected failures of each row of the window. Both tables have the same factors and values."""
    overall = (before.failures.sum() + 0.5) / (before.size().sum() + 1.0)
    ours, expected_before = window.size() * overall, before.size() * overall
    for _ in range(ROUNDS):
        for now, then in zip(window.factors, before.factors, strict=True):
            ratios = _ratios(then, before.failures, expected_before, WEIGHT * overall)
            expected_before = np.minimum(
                expected_before * _of_rows(then, ratios, before.num_rows), MOST * before.attempts
            )
            ours = np.minimum(ours * _of_rows(now, ratios, window.num_rows), MOST * window.attempts)
    return np.asarray(ours)


def _ratios(
    factor: Factor, failures: Float64[np.ndarray, "row"], expected: Float64[np.ndarray, "row"], weight: float
) -> Float64[np.ndarray, "value"]:
    """Return observed over expected failures, by value."""
    seen, due = (
        np.bincount(factor.codes, of[factor.rows], minlength=len(factor.values)) for of in (failures, expected)
    )
    return np.asarray((seen + weight) / (due + weight))


def _of_rows(factor: Factor, ratios: Float64[np.ndarray, "value"], num_rows: int) -> Float64[np.ndarray, "row"]:
    """Return each row's ratio: the geometric mean of a cell's values; 1 if it is empty."""
    logs = np.bincount(factor.rows, np.log(ratios)[factor.codes], minlength=num_rows)
    counts = np.bincount(factor.rows, minlength=num_rows)
    return np.asarray(np.exp(logs / np.maximum(counts, 1)))
