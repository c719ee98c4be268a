"""A small dataset of token rows with spans that are trained, as plain Parquet beside its manifest."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.data.dataset.index import index_dataset

VOCABULARY = 40


def language_dataset(folder: Path, *, num_rows: int = 240, longest: int = 24) -> Path:
    """Rows that count upwards by a step of their own, begun anywhere: a model can learn to go on.

    Of each row, two spans are trained, or one; of every seventh its first token, which nobody can learn.
    """
    rng = np.random.default_rng(0)
    rows = [_row(rng, longest) for _ in range(num_rows)]
    spans = [_spans(row, len(ids)) for row, ids in enumerate(rows)]
    table = pa.table(
        {
            "input_ids": pa.array(rows, pa.list_(pa.int32())),
            "trained_spans": pa.array(spans, pa.list_(pa.int32())),
            "language": pa.array([["en", "de", None][row % 3] for row in range(num_rows)]),
            "shard_id": pa.array([f"key-{row}" for row in range(num_rows)]),
        }
    )  # fmt: skip
    return indexed(table, folder)


def indexed(table: pa.Table, folder: Path) -> Path:
    """These rows as three shards and a manifest."""
    (folder / "source").mkdir(parents=True)
    for shard in range(3):
        part = table.slice(shard * len(table) // 3, len(table) // 3)
        pq.write_table(part, folder / "source" / f"{shard}.parquet", row_group_size=16)
    index_dataset(str(folder / "source"), folder / "dataset", needs_label=False)
    return folder / "dataset"


def _row(rng: np.random.Generator, longest: int) -> list[int]:
    first, step, length = (
        int(rng.integers(1, VOCABULARY)),
        int(rng.integers(1, 4)),
        int(rng.integers(2, longest + 1)),
    )
    return [1 + (first + step * location) % (VOCABULARY - 1) for location in range(length)]


def _spans(row: int, length: int) -> list[int]:
    if row % 7 == 0:
        return [0, 1]
    middle = length // 2
    return [0, middle, middle + 1, length] if length > 4 else [1, length]


def sft_recipe(dataset: Path, **sections: Any) -> dict[str, Any]:
    """Four lanes of four rows, and a model of a few thousand weights."""
    tree: dict[str, Any] = {
        "name": "language",
        "seed": 3,
        "data": {"dataset": str(dataset), "split": {"type": "hash", "validation_fraction": 0.1}},
        "loader": {"lanes": 4, "global_batch_size": 16, "window_rows": 16, "threads": 1},
        "method": {"type": "sft", "train_on": "all", "model": small_model()},
        "trainer": {"max_steps": 12, "commit_every": 4, "optimizer": {"learning_rate": 3e-3}},
    }
    for name, section in sections.items():
        tree[name] = {**tree[name], **section} if isinstance(section, dict) else section
    return tree


def small_model(**keys: Any) -> dict[str, Any]:
    """Two layers, with heads of keys that are shared."""
    return {
        "type": "new", "vocab_size": VOCABULARY, "hidden_size": 16, "num_layers": 2, "num_heads": 4,
        "num_kv_heads": 2, "intermediate_size": 32, "max_tokens": 64, **keys,
    }  # fmt: skip
