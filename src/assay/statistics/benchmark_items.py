"""Per-item scores of benchmarks: write, read, summarise and align them.

A failed item (the machinery broke, not the model) has no score. It is left out of the mean and counted. Checkpoints are
compared only on the items that all of them scored, so a failure cannot favour one of them.
"""

import io
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, DamagedDataError, DataError
from assay.base.shapes import Float64, Int
from assay.records.benchmark import BenchmarkResult, DetectableEffect
from assay.records.evaluation import Estimate
from assay.scoring.grade import ItemFailure
from assay.statistics.interval import LARGEST_SCORE, clustered_variance, wilson_interval, within
from assay.store.objects import open_store

ITEMS_FILE = "items.parquet"
RESULT_FILE = "result.json"
ITEM_SCHEMA = pa.schema(
    [
        ("item_id", pa.string()),
        ("cluster", pa.string()),
        ("score", pa.float64()),
        ("weight", pa.float64()),
        ("failure_kind", pa.string()),
        ("failure", pa.string()),
        ("completion", pa.string()),
        ("details", pa.string()),
        ("finish_reason", pa.string()),
    ]
)


class ItemScore(NamedTuple):
    """Score of one item, or its failure."""

    item_id: str
    cluster: str
    """Items of one cluster (a passage, a file) are one draw; a single item is its own cluster."""
    score: float | None
    """None if the item failed."""
    weight: float = 1.0
    failure: ItemFailure | None = None
    """Why there is no score."""
    completion: str | None = None
    """The model's output, for readers."""
    details: str | None = None
    """JSON of other measurements, e.g. `{"f1_score": 0.5}`."""
    finish_reason: str | None = None
    """Why the completion ended: `stop`, `length` if it was truncated, ...; None if none was sampled."""


class ScoreMatrix(NamedTuple):
    """Scores of the same items under several checkpoints; only items that all of them scored."""

    scores: Float64[np.ndarray, "seed item"]
    """[seed, item]."""
    item_ids: tuple[str, ...]
    clusters: Int[np.ndarray, "item"]
    """[item]: index of its cluster, from 0."""
    cluster_names: tuple[str, ...]
    """[item]: name of its cluster."""
    weights: Float64[np.ndarray, "item"]
    """[item]: 1, or e.g. its bytes."""
    num_dropped: int
    """Items that a checkpoint failed to score."""


def items_table(items: Sequence[ItemScore]) -> pa.Table:
    """Return the table of `items.parquet`, sorted by id. Raises `DataError` for a repeated id."""
    ordered = sorted(items, key=lambda item: item.item_id)
    ids = [item.item_id for item in ordered]
    repeated = next((a for a, b in itertools.pairwise(ids) if a == b), None)
    if repeated is not None:
        raise DataError(f"item '{repeated}' is listed more than once. Give each item an id of its own.")
    return pa.Table.from_pylist([_row(item) for item in ordered], schema=ITEM_SCHEMA)


def items_of(table: pa.Table) -> list[ItemScore]:
    """Return the items of a table."""
    return [_item(row) for row in table.to_pylist()]


def _row(item: ItemScore) -> dict[str, Any]:
    kind, text = item.failure or (None, None)
    return {**item._asdict(), "failure_kind": kind, "failure": text}


def _item(row: dict[str, Any]) -> ItemScore:
    kind, text = row.pop("failure_kind"), row.pop("failure")
    return ItemScore(**row, failure=None if kind is None else ItemFailure(kind, text or ""))


def items_bytes(table: pa.Table) -> bytes:
    """Return the Parquet file; equal scores give equal bytes."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def save_result(folder: Path, result: BenchmarkResult, items: bytes) -> None:
    """Write the items, then the record that holds their digest."""
    assert sha256_of_bytes(items) == result.items_sha256, "the record is of other items"
    store = open_store(str(folder))
    store.put(ITEMS_FILE, items)
    store.put(RESULT_FILE, (result.to_json() + "\n").encode())


def load_result(folder: Path) -> BenchmarkResult:
    """Read the record of a result folder; raise `DataError` if it holds none."""
    path = folder / RESULT_FILE
    if not path.is_file():
        raise DataError(f"{path}: no such file. Evaluate the checkpoint first: 'assay eval run'.")
    return BenchmarkResult.from_json(path.read_bytes(), source=path)


def result_folders(root: Path) -> list[Path]:
    """Return all result folders below a folder."""
    return sorted(path.parent for path in root.rglob(RESULT_FILE)) if root.is_dir() else []


def read_items(folder: Path, result: BenchmarkResult) -> pa.Table:
    """Read the items of a result; raise `DamagedDataError` if their digest differs from the record's."""
    path = folder / ITEMS_FILE
    if not path.is_file():
        raise DataError(f"{path}: no such file, but {RESULT_FILE} refers to it. Evaluate the checkpoint again.")
    data = path.read_bytes()
    if (seen := sha256_of_bytes(data)) != result.items_sha256:
        raise DamagedDataError(
            f"{path}: has digest {seen[:12]}…, its result says {result.items_sha256[:12]}…. "
            "The file changed after it was written; evaluate the checkpoint again."
        )
    return pq.ParquetFile(io.BytesIO(data)).read()


def score_matrix(results: Sequence[tuple[BenchmarkResult, pa.Table]]) -> ScoreMatrix:
    """Align results of one benchmark, one row per result in the given order.

    Raises `ConfigError` if they differ in benchmark, prompts, grader or items.
    """
    _require_one_benchmark([result for result, _ in results])
    first = results[0][1]
    ids = first["item_id"].to_pylist()
    for result, table in results[1:]:
        if table["item_id"].to_pylist() != ids:
            raise ConfigError(
                f"benchmark '{result.benchmark}': run '{result.run_id}' step {result.step} has other items "
                f"({table.num_rows}) than '{results[0][0].run_id}' ({len(ids)}). Evaluate both on one version."
            )
    scores = np.stack([_scores(table) for _, table in results])
    complete = np.isfinite(scores).all(axis=0)
    return ScoreMatrix(
        scores=scores[:, complete],
        item_ids=tuple(np.array(ids, dtype=object)[complete].tolist()),
        clusters=_cluster_indices(first["cluster"])[complete],
        cluster_names=tuple(np.array(first["cluster"].to_pylist(), dtype=object)[complete].tolist()),
        weights=first["weight"].to_numpy()[complete],
        num_dropped=int((~complete).sum()),
    )


def read_score_matrix(folders: Sequence[Path]) -> ScoreMatrix:
    """Return the `score_matrix` of result folders."""
    results = [(folder, load_result(folder)) for folder in folders]
    return score_matrix([(result, read_items(folder, result)) for folder, result in results])


class Summary(NamedTuple):
    """Mean score, detectable effect and failures of a table of items."""

    score: Estimate
    could_detect: DetectableEffect | None
    num_failed: int


def summarise(table: pa.Table, unit: str = "") -> Summary:
    """Return the weighted mean of scores with its clustered interval; raise `DataError` if no item has a score."""
    scores = _scores(table)
    scored = np.isfinite(scores)
    num_failed = int((~scored).sum())
    if not scored.any():
        seen = sorted({str(item.failure) for item in items_of(table) if item.failure is not None})[:3]
        raise DataError(f"none of {len(scores):,} items has a score, so there is no result: {'; '.join(seen)}")
    scores, weights = scores[scored], table["weight"].to_numpy()[scored]
    clusters = np.unique(_cluster_indices(table["cluster"])[scored], return_inverse=True)[1]
    mean = float(np.average(scores, weights=weights))
    shares = weights / weights.sum()
    found = clustered_variance((scores - mean) * shares, clusters, shares)
    if found.degrees <= 0.0:
        return Summary(Estimate(value=mean, method="one cluster: no interval"), None, num_failed)
    from scipy.special import stdtrit  # imported here: listing results does not need SciPy

    quantile, error = float(stdtrit(found.degrees, 0.975)), math.sqrt(float(found.variance))
    num_clusters = len(np.unique(clusters))
    clustered = "clustered " if num_clusters < len(scores) else ""
    if _are_shares(scores):
        effective = effective_number(mean, error, len(scores), num_clusters)
        low, high = wilson_interval(mean, effective, quantile)
        estimate = Estimate(value=mean, low=low, high=high, method=f"{clustered}Wilson (t)")
    else:
        half_width = quantile * error
        method = f"{clustered}normal theory (t)"
        estimate = Estimate(value=mean, low=mean - half_width, high=mean + half_width, method=method)
        # A user's grader may give more than 1 in a suite with the default unit.
        if unit == "share" and scores.min() >= 0.0 and scores.max() <= 1.0:
            estimate = within(estimate, 0.0, 1.0)
    return Summary(estimate, detectable_effect(scores, error), num_failed)


def effective_number(rate: float, error: float, num_items: int, num_clusters: int) -> float:
    """Return the number of independent items that leaves a rate as uncertain as the clustered items do.

    If all scores are equal, nothing shows how alike a cluster's items are, and each cluster counts once.
    """
    if error == 0:
        return float(num_clusters)
    return min(float(num_items), rate * (1 - rate) / error**2)


def detectable_effect(scores: Float64[np.ndarray, "item"], error: float) -> DetectableEffect:
    """Return the smallest difference between two checkpoints that the items detect; `error` is that of their mean.

    (z_{(1+confidence)/2} + z_power) * SE * sqrt(2), as if the noise of both were independent. If all scores are 0 or 1,
    the variance is at least that of a rate with two more successes and two more failures (Agresti & Coull 1998), so
    that a benchmark without failures does not seem to detect everything.
    """
    if _are_shares(scores):
        count, successes = len(scores), float(scores.sum())
        rate = (successes + 2) / (count + 4)
        error = max(error, math.sqrt(rate * (1 - rate) / (count + 4)))
    from scipy.special import ndtri

    power, confidence = 0.8, 0.95
    quantiles = ndtri((1 + confidence) / 2) + ndtri(power)
    effect = float(quantiles) * error * math.sqrt(2)
    return DetectableEffect(effect=effect, power=power, confidence=confidence, correlation=0.0)


def _are_shares(scores: Float64[np.ndarray, "item"]) -> bool:
    return bool(np.isin(scores, (0.0, 1.0)).all())


def _scores(table: pa.Table) -> Float64[np.ndarray, "item"]:
    """Return the scores, NaN for failed items and for a diverged model."""
    filled = table["score"].to_numpy(zero_copy_only=False).astype(np.float64)
    return np.where(np.abs(filled) <= LARGEST_SCORE, filled, np.nan)


def _cluster_indices(column: Any) -> Int[np.ndarray, "item"]:
    return np.unique(np.array(column.to_pylist(), dtype=object), return_inverse=True)[1]


def _require_one_benchmark(results: Sequence[BenchmarkResult]) -> None:
    if not results:
        raise ConfigError("no results to compare. Evaluate a checkpoint first: 'assay eval run'.")
    if cut := next((result for result in results if result.incomplete_reason), None):
        raise ConfigError(
            f"the result of run '{cut.run_id}' on benchmark '{cut.benchmark}' is not whole ("
            f"{cut.incomplete_reason}), and no item is missing by chance. Import the log of a whole evaluation."
        )
    for name in ("benchmark", "benchmark_sha256", "grader_sha256", "prompt_sha256"):
        seen = {getattr(result, name) for result in results}
        if len(seen) > 1:
            shown = " and ".join(sorted(str(value)[:24] for value in seen)[:2])
            raise ConfigError(
                f"results of benchmark '{results[0].benchmark}' differ in {name}: {shown}. Only scores of the "
                "same items, prompts and grader can be compared; evaluate the older checkpoint again."
            )
