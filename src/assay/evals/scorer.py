"""The interface of benchmarks: chunks of items that are scored independently, each once.

    benchmark file + model -> Scorer -> chunk 0, chunk 1, ... -> items.parquet -> BenchmarkResult

The items of a chunk depend only on the benchmark, and their scores only on the items and the weights. If a worker dies,
only its current chunk is scored again, with the same scores.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from assay.records.benchmark import Contamination
from assay.statistics.benchmark_items import ItemScore


class Identity(NamedTuple):
    """What two results must share to be comparable, and how to read their scores."""

    benchmark: str
    benchmark_sha256: str
    grader_sha256: str
    prompt_sha256: str
    unit: str = "share"
    higher_is_better: bool = True


class Scorer(Protocol):
    """One benchmark on one checkpoint."""

    identity: Identity
    """Known before anything is scored."""
    num_chunks: int
    """Chunks are numbered from 0."""
    training_fingerprint: str | None = None
    """Fingerprint of the training data that `contamination` searches; None if it searches none."""

    def score_chunk(self, chunk: int) -> list[ItemScore]:
        """Return the scores of a chunk's items; an item that could not be scored is returned as a failure."""
        ...

    def contamination(self, items: Sequence[ItemScore]) -> Contamination | None:  # noqa: ARG002
        """Return how much of the benchmark was trained on; None if no training data is given."""
        return None

    def of_score(self, score: float) -> dict[str, float]:  # noqa: ARG002
        """Return further metrics that follow from the total score, e.g. a perplexity."""
        return {}

    def close(self) -> None:
        """Release processes and other resources."""
        return


def chunk_ranges(num_items: int, chunk_items: int) -> list[range]:
    """Return the item indices of each chunk."""
    return [range(start, min(start + chunk_items, num_items)) for start in range(0, num_items, chunk_items)]


PROMPT_TOKENS_CUT = "prompt_tokens_cut"
"""Key in the details of an item whose prompt lost its beginning because it exceeded the context."""


def num_prompts_cut(items: Sequence[ItemScore]) -> int:
    """Return the number of items with a truncated prompt."""
    return sum(PROMPT_TOKENS_CUT in _details_of(item) for item in items)


def mean_details(items: Sequence[ItemScore]) -> dict[str, float]:
    """Return the means of the items' numeric details, and the counts of their text values."""
    numbers: dict[str, list[float]] = {}
    counts: dict[str, float] = {}
    for item in items:
        for key, value in _details_of(item).items():
            if key == PROMPT_TOKENS_CUT:
                continue
            if isinstance(value, str):
                counts[f"counts/{value}"] = counts.get(f"counts/{value}", 0.0) + 1
            elif value is not None:
                numbers.setdefault(key, []).append(float(value))
    return {**{key: float(np.mean(values)) for key, values in numbers.items()}, **counts}


def _details_of(item: ItemScore) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(item.details) if item.details else {}
    return found
