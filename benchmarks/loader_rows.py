"""The rows that every loader of the benchmark reads, and the batch that every one must make of them.

Sequences of lognormal length (median 299, mean about 435, 2048 at most) in 32 zstd Parquet shards, row groups
of about 1,500 rows. A batch is 32 rows as torch tensors: ids padded with 0 (int64), mask, label, and the row's
key, by which the benchmark counts what was served.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

BATCH_ROWS = 32
NUM_SHARDS = 32
ROW_GROUP_ROWS = 1500
MAX_TOKENS = 2048
VOCABULARY = 30_000
BUFFER_ROWS = 10_000
"""Of loaders that shuffle in a buffer."""
COLUMNS = ("input_ids", "label", "row_key")


class Batch(NamedTuple):
    """What a training loop gets."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor
    keys: np.ndarray
    lengths: np.ndarray


def write_shards(folder: Path, num_rows: int) -> None:
    """Write the shards, unless they are there; row r of the dataset has the key r."""
    if (folder / "done").exists() and (folder / "done").read_text() == str(num_rows):
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    borders = np.linspace(0, num_rows, NUM_SHARDS + 1).astype(int)
    for shard, (start, stop) in enumerate(pairwise(borders)):
        lengths = np.clip(rng.lognormal(np.log(299), 0.85, stop - start), 4, MAX_TOKENS).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        tokens = np.exp(rng.random(offsets[-1]) * np.log(VOCABULARY)).astype(np.int32)
        table = pa.table(
            {
                "input_ids": pa.ListArray.from_arrays(offsets, tokens),
                "attention_mask": pa.ListArray.from_arrays(offsets, np.ones(len(tokens), np.int8)),
                "label": pa.array((rng.random(stop - start) < 0.18).astype(np.int8)),
                "language": pa.array(rng.choice(["de", "en", "fr"], stop - start)),
                "row_key": pa.array(np.arange(start, stop)),
            }
        )
        path = folder / f"shard-{shard:05d}.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=ROW_GROUP_ROWS)
    (folder / "done").write_text(str(num_rows))


def shards(folder: Path) -> list[str]:
    """Paths of the shards."""
    return [str(path) for path in sorted(folder.glob("*.parquet"))]


def padded_batch(
    tokens: Sequence[np.ndarray], labels: Sequence[int] | np.ndarray, keys: Sequence[int] | np.ndarray
) -> Batch:
    """From one array of tokens a row: the collate function of all loaders that yield rows."""
    lengths = np.array([len(row) for row in tokens])
    input_ids = np.zeros((len(tokens), lengths.max()), np.int64)
    for line, row in zip(input_ids, tokens, strict=True):
        line[: len(row)] = row
    return finished(torch.from_numpy(input_ids), lengths, np.asarray(labels), np.asarray(keys))


def finished(input_ids: torch.Tensor, lengths: np.ndarray, labels: np.ndarray, keys: np.ndarray) -> Batch:
    """The mask follows from the lengths; nobody reads it."""
    mask = np.arange(input_ids.shape[1], dtype=lengths.dtype) < lengths[:, None]
    return Batch(
        input_ids, torch.from_numpy(mask), torch.from_numpy(labels.astype(np.int64)), np.asarray(keys), lengths
    )
