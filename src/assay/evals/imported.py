"""What every import of another tool's results comes to."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from assay.base.errors import DataError
from assay.evals.scorer import Identity
from assay.scoring.item_failure import ItemFailure
from assay.statistics.benchmark_items import ItemScore

MEAN_TOLERANCE = 1e-6
"""Between the mean of the items and the tool's own: both add the same numbers."""


class Imported(NamedTuple):
    """One benchmark of another tool."""

    identity: Identity
    items: list[ItemScore]
    model: str
    """As the tool names it."""
    source: str
    difference: str = ""
    """In words, how the tool's own mean is another one than that of the items, or the benchmark only a part."""
    num_expected: int | None = None
    """Items that the tool set out to score; None where its log does not say."""
    incomplete_reason: str = ""
    """Why the log does not have all of them; empty where it has, as far as anybody knows."""


def as_allowed(imported: Imported, path: Path, *, is_partial_allowed: bool) -> Imported:
    """A whole benchmark as it is; one that was cut short with its missing items failed, or a `DataError`."""
    items, expected = imported.items, imported.num_expected
    if expected is not None and len(items) > expected:
        raise DataError(
            f"{path}: {len(items):,} items, but its own count is {expected:,}. Import one run's log."
        )
    num_missing = 0 if expected is None else expected - len(items)
    if not num_missing and not imported.incomplete_reason:
        return imported
    found_text = (
        f"{len(items):,} of {'an unknown number of' if expected is None else format(expected, ',')} items"
    )
    reason = "; ".join(filter(None, [imported.incomplete_reason, f"it has {found_text}"]))
    if not is_partial_allowed:
        raise DataError(
            f"{path}: the log of '{imported.identity.benchmark}' is not whole: {reason}. Which items end first "
            "is not chance, so their mean is biased. Finish the evaluation and import its log; or give "
            "--partial: missing items count as failed, and no comparison or decision takes the result."
        )
    failure = ItemFailure("not_run", "the log ends before this item")
    missing = [
        ItemScore(f"(missing {k:06d})", f"(missing {k:06d})", None, failure=failure) for k in range(num_missing)
    ]
    return imported._replace(items=[*items, *missing], incomplete_reason=reason)


def plain_name(name: str) -> str:
    """The name of a benchmark as files can bear it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip("._-") or "imported"


def short_text(value: Any) -> str | None:
    """An answer as text, whatever the tool made of it."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)[:2000]
