"""The rows that every trainer of the comparison learns: tokens of very different lengths, in sharded Parquet.

Lengths are lognormal with a median of 90 tokens and a mean of about 115, cut at 512: most rows are short, and
a random batch is padded to a rare long one. A row's label follows from its tokens, so that the loss falls.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset
from assay.data.dataset.split import DatasetView, whole_view

VOCAB_SIZE = 4096
MAX_TOKENS = 512
MEDIAN_TOKENS, SIGMA = 90, 0.7
ROWS_PER_SHARD, ROWS_PER_GROUP = 512, 128


def write_rows(folder: Path, num_rows: int) -> Path:
    """Write and index so many rows; returns the folder of the manifest."""
    rng = np.random.default_rng(0)
    for first in range(0, num_rows, ROWS_PER_SHARD):
        count = min(ROWS_PER_SHARD, num_rows - first)
        lengths = np.clip(np.exp(rng.normal(np.log(MEDIAN_TOKENS), SIGMA, count)), 4, MAX_TOKENS).astype(int)
        tokens = [rng.integers(1, VOCAB_SIZE, length, dtype=np.int32) for length in lengths]
        table = pa.table(
            {
                "input_ids": pa.array(tokens, pa.list_(pa.int32())),
                "label": pa.array([int(row.mean() > VOCAB_SIZE / 2) for row in tokens], pa.int8()),
            }
        )
        (folder / "rows").mkdir(parents=True, exist_ok=True)
        path = folder / "rows" / f"{first // ROWS_PER_SHARD:04d}.parquet"
        pq.write_table(table, path, row_group_size=ROWS_PER_GROUP)
    index_dataset(str(folder / "rows"), folder / "dataset")
    return folder / "dataset"


def all_rows(dataset: Path) -> DatasetView:
    """Nothing held out."""
    return whole_view(Dataset.open(dataset))


def rows_in_memory(dataset: Path) -> list[dict[str, object]]:
    """The same rows as plain lists, for trainers that want an indexable dataset."""
    table = pa.concat_tables(pq.read_table(path) for path in sorted((dataset.parent / "rows").glob("*.parquet")))
    return [
        {"input_ids": row["input_ids"], "labels": float(row["label"])}
        for row in table.select(["input_ids", "label"]).to_pylist()
    ]
