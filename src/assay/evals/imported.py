"""The common form of results and suites imported from other evaluation tools."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml

from assay.base.config import LoadedConfig, validated
from assay.base.errors import ConfigError, DataError
from assay.evals.config import Suite
from assay.evals.scorer import Identity
from assay.scoring.grade import ItemFailure, ItemFailureKind
from assay.scoring.json_lines import json_lines_text
from assay.statistics.benchmark_items import ItemScore

MEAN_TOLERANCE = 1e-6
"""Allowed difference between the mean of the items and the tool's own mean of the same numbers."""


class Imported(NamedTuple):
    """One benchmark of another tool."""

    identity: Identity
    items: list[ItemScore]
    model: str
    """Name of the model in the tool."""
    source: str
    difference: str = ""
    """How the tool's own mean differs from that of the items, or which part of the benchmark was run."""
    num_expected: int | None = None
    """Items that the tool was to score; None if its log does not say."""
    incomplete_reason: str = ""
    """Why items are missing from the log; empty if it is complete as far as known."""


class ImportedSuite(NamedTuple):
    """A suite made from the definition of another tool."""

    tree: dict[str, Any]
    """As in a suite's file; its items are in `items.jsonl`."""
    items: list[dict[str, Any]]
    left_out: list[str]
    """Sentences on parts of the definition that have no counterpart."""

    @classmethod
    def of(
        cls,
        name: str,
        graders: Iterable[tuple[str, Mapping[str, Any]]],
        items: list[dict[str, Any]],
        left_out: list[str],
        *,
        sampling: Mapping[str, Any],
        source: Path,
    ) -> Self:
        """Return a suite with a benchmark for each grader. Raises `ConfigError` if a grader is not valid here."""
        benchmarks = [
            {"type": "generation", "name": plain_name(criterion), "items": "items.jsonl", "grader": grader}
            | ({"sampling": {**sampling}} if sampling else {})
            for criterion, grader in graders
        ]
        tree = {"name": plain_name(name), "benchmarks": benchmarks}
        try:
            validated(Suite, LoadedConfig(tree, {}))
        except ConfigError as error:
            raise ConfigError(f"{source}: its criteria give no valid suite: {error}") from error
        return cls(tree, items, left_out)

    def files(self) -> dict[str, str]:
        """Return the content of the suite's files by name, the suite itself last."""
        suite = yaml.safe_dump(self.tree, sort_keys=False, allow_unicode=True)
        return {"items.jsonl": json_lines_text(self.items), "suite.yaml": suite}


def as_allowed(imported: Imported, path: Path, *, is_partial_allowed: bool) -> Imported:
    """Return a complete benchmark unchanged. If it is incomplete, add its missing items as failed, or raise
    `DataError`."""
    items, expected = imported.items, imported.num_expected
    if expected is not None and len(items) > expected:
        raise DataError(f"{path}: {len(items):,} items, but its own count is {expected:,}. Import one run's log.")
    num_missing = 0 if expected is None else expected - len(items)
    if not num_missing and not imported.incomplete_reason:
        return imported
    found_text = f"{len(items):,} of {'an unknown number of' if expected is None else format(expected, ',')} items"
    reason = "; ".join(filter(None, [imported.incomplete_reason, f"it has {found_text}"]))
    if not is_partial_allowed:
        raise DataError(
            f"{path}: the log of '{imported.identity.benchmark}' is not whole: {reason}. Items that end first are "
            "no random sample, so their mean is biased. Finish the evaluation and import its log; or give "
            "--partial: missing items count as failed, and no comparison or decision uses the result."
        )
    missing = [
        unscored(f"(missing {k:06d})", "the log ends before this item", kind="not_run") for k in range(num_missing)
    ]
    return imported._replace(items=[*items, *missing], incomplete_reason=reason)


def unscored(
    item_id: str,
    text: str,
    *,
    cluster: str | None = None,
    kind: ItemFailureKind = "unscored",
    completion: str | None = None,
) -> ItemScore:
    """Return an item that has no score, for the reason in `text`."""
    return ItemScore(item_id, cluster or item_id, None, failure=ItemFailure(kind, text), completion=completion)


def plain_name(name: str) -> str:
    """Return a benchmark's name as a valid file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip("._-") or "imported"


def short_text(value: Any) -> str | None:
    """Return a completion as text, whatever type the tool logged."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)[:2000]
