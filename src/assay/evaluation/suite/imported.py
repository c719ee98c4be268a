"""What every import of another tool's results comes to."""

import json
import re
from typing import Any, NamedTuple

from assay.evaluation.evidence.benchmark_items import ItemScore
from assay.evaluation.suite.scorer import Identity

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
    """In words, how the tool's own mean is another one than that of the items."""


def plain_name(name: str) -> str:
    """The name of a benchmark as files can bear it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip("._-") or "imported"


def short_text(value: Any) -> str | None:
    """An answer as text, whatever the tool made of it."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)[:2000]
