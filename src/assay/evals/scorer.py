"""What every kind of benchmark offers: chunks of items that can be scored one by one, each once and for all.

    benchmark file + model -> Scorer -> chunk 0, chunk 1, ... -> items.parquet -> BenchmarkResult

Which items are in a chunk follows from the benchmark alone, and a chunk's scores from its items and the
weights. So a worker that dies costs the chunk it was at, and whoever goes on gets the same scores.
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
    """The fingerprint of the training data that `contamination` searches; None where it searches none."""

    def score_chunk(self, chunk: int) -> list[ItemScore]:
        """The scores of a chunk's items; an item that the machinery fails is a failure in its place."""
        ...

    def contamination(self, items: Sequence[ItemScore]) -> Contamination | None:  # noqa: ARG002
        """How much of the benchmark was trained on; None where no training data is named to search."""
        return None

    def of_score(self, score: float) -> dict[str, float]:  # noqa: ARG002
        """What else the score over all items is, by name: a perplexity."""
        return {}

    def close(self) -> None:
        """Give back processes and the like."""
        return


def chunk_ranges(num_items: int, chunk_items: int) -> list[range]:
    """Item indices of each chunk."""
    return [range(start, min(start + chunk_items, num_items)) for start in range(0, num_items, chunk_items)]


PROMPT_TOKENS_CUT = "prompt_tokens_cut"
"""The detail of an item whose prompt lost its beginning, for which the model had no room."""


def num_prompts_cut(items: Sequence[ItemScore]) -> int:
    """Items whose prompt the model did not read from its beginning."""
    return sum(PROMPT_TOKENS_CUT in _details_of(item) for item in items)


def mean_details(items: Sequence[ItemScore]) -> dict[str, float]:
    """The mean of whatever numbers items measured besides their score, and the counts of names."""
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
