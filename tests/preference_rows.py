"""Preference pairs with a rule that a model can learn, as plain Parquet beside their manifest.

A prompt is some digits; an answer is the same digits in another order, and an end. Of two answers the one with
fewer inversions is preferred: the one that is nearer to being sorted.
"""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.data.dataset.index import index_dataset

SEPARATOR, END, FIRST_DIGIT, VOCABULARY = 1, 2, 3, 16


def inversions(digits: list[int]) -> int:
    """Pairs of places whose digits fall."""
    return sum(one > other for one, other in combinations(digits, 2))


def pair_row(rng: np.random.Generator, num_digits: int) -> dict[str, Any]:
    """As a dataset holds it; the margin is a tenth of the inversions that were saved."""
    digits = rng.choice(np.arange(FIRST_DIGIT, VOCABULARY), num_digits, replace=False)
    while True:
        responses = [[int(digit) for digit in rng.permutation(digits)] for _ in range(2)]
        chosen, rejected = sorted(responses, key=inversions)
        if inversions(chosen) < inversions(rejected):
            break
    prompt = [*map(int, digits), SEPARATOR]
    return {
        "input_ids": [*prompt, *chosen, END],
        "rejected_ids": [*prompt, *rejected, END],
        "prompt_tokens": len(prompt),
        "margin": (inversions(rejected) - inversions(chosen)) / 10,
    }


def preference_dataset(folder: Path, *, num_rows: int = 240, digits: tuple[int, int] = (2, 6)) -> Path:
    """Rows of from `digits[0]` to `digits[1]` digits; each is a key of its own."""
    rng = np.random.default_rng(0)
    rows = [pair_row(rng, int(rng.integers(digits[0], digits[1] + 1))) for _ in range(num_rows)]
    return write_pairs(folder, rows)


def write_pairs(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Three shards and a manifest."""
    tokens = pa.list_(pa.int32())
    types = {
        "input_ids": tokens, "rejected_ids": tokens, "prompt_tokens": pa.int32(), "margin": pa.float32(),
        "trained_spans": tokens,
    }  # fmt: skip
    table = pa.table(
        {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items() if name in rows[0]}
        | {name: pa.array([row[name] for row in rows]) for name in rows[0] if name not in types}
        | {"shard_id": pa.array([f"key-{row}" for row in range(len(rows))])}
    )
    (folder / "source").mkdir(parents=True)
    for shard in range(3):
        part = table.slice(shard * len(rows) // 3, len(rows) // 3)
        pq.write_table(part, folder / "source" / f"{shard}.parquet", row_group_size=16)
    index_dataset(str(folder / "source"), folder / "dataset", needs_label=False)
    return folder / "dataset"


def preference_recipe(dataset: Path, method: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    """Four lanes of four pairs."""
    tree: dict[str, Any] = {
        "name": "preferences",
        "data": {"dataset": str(dataset), "split": {"type": "hash", "validation_fraction": 0.2}},
        "loader": {"lanes": 4, "global_batch_size": 16, "window_rows": 16, "threads": 1},
        "method": method,
        "trainer": {"max_steps": 12, "commit_every": 4, "optimizer": {"learning_rate": 3e-3}},
    }
    return tree | {name: {**tree[name], **section} for name, section in sections.items()}


def small_model(**keys: Any) -> dict[str, Any]:
    """Two layers."""
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 64, "max_tokens": 32}
    return {"type": "new", "vocab_size": VOCABULARY, **sizes, **keys}
