"""The items of a benchmark result: prompt, completion and grade of each."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from assay.base.errors import AssayError, ConfigError
from assay.records.benchmark import BenchmarkResult
from assay.reporting.views.view import View
from assay.store.ledger.ledger import Ledger

Which = Literal["all", "failed", "zero", "positive"]
"""Items to show: without a score, with score 0, with a higher one."""
WHICH: tuple[Which, ...] = get_args(Which)


class ItemView(View):
    """An item of a benchmark under one checkpoint."""

    item_id: str
    """In the benchmark."""
    cluster: str
    """Items of one cluster are one draw."""
    score: float | None
    """Null if it failed."""
    weight: float
    """In the mean."""
    failure_kind: str | None
    """Such as `sampler_timeout`; null if the item has a score."""
    failure: str | None
    """Why there is no score."""
    completion: str | None
    """Null if none was sampled."""
    finish_reason: str | None
    """`stop`, or `length` if the completion was truncated."""
    details: dict[str, Any]
    """Other measurements."""


def newest_result(ledger: Ledger, run_id: str, benchmark: str, step: int, *, version: str = "") -> BenchmarkResult:
    """Return a checkpoint's result of a benchmark, of several versions the one that was evaluated last. `version`: the
    beginning of `version_sha256`. Raises `ConfigError` if there is none."""
    found = [
        result
        for result in ledger.benchmark_results(run_id)
        if (result.benchmark, result.step) == (benchmark, step) and result.version_sha256().startswith(version)
    ]
    if not found:
        raise ConfigError(
            f"no result of '{benchmark}' for {run_id} at step {step}. 'assay eval history {run_id}' lists its results."
        )
    return max(found, key=lambda result: result.evaluated_s)


def result_items(run_dir: Path, result: BenchmarkResult, which: Which = "all") -> list[ItemView]:
    """Return the items of a result by id. Raises `DataError` if they are gone or were changed."""
    # Here, for pyarrow is large, and a page of scores needs none of it.
    from assay.evals.queue import Checkpoint, benchmark_folder
    from assay.evals.scorer import Identity
    from assay.statistics.benchmark_items import read_items

    checkpoint = Checkpoint(*(getattr(result, name) for name in Checkpoint._fields))
    identity = Identity(*(getattr(result, name) for name in Identity._fields))
    folder = run_dir / benchmark_folder(checkpoint, identity)
    if not folder.is_dir():  # a campaign's scores of predictions have one folder for all versions
        folder = run_dir / "benchmarks" / result.benchmark
    table = read_items(folder, result)
    items = [ItemView(**{**row, "details": json.loads(row["details"] or "{}")}) for row in table.to_pylist()]
    return [item for item in items if _is_shown(item, which)]


def _is_shown(item: ItemView, which: Which) -> bool:
    if which == "all":
        return True
    if which == "failed" or item.score is None:
        return which == "failed" and item.score is None
    return item.score > 0 if which == "positive" else item.score == 0


def item_fields(suites: Iterable[Path], result: BenchmarkResult, item_id: str) -> Mapping[str, Any] | None:
    """Return an item as its suite has it, such as prompt and expected answer; None if no suite has this version."""
    from assay.evals.config import Generation, MultipleChoice
    from assay.evals.items import read_items
    from assay.evals.version import present_suite

    for path in suites:
        try:
            present = present_suite(path)
            benchmark = next((item for item in present.suite.benchmarks if item.name == result.benchmark), None)
            if not present.covers(result) or not isinstance(benchmark, (Generation, MultipleChoice)):
                continue
            found = read_items(path.parent / benchmark.items)
        except (AssayError, OSError):
            continue
        return next((item.fields for item in found if item.item_id == item_id), None)
    return None
