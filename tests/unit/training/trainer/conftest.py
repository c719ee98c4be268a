"""A small pre-tokenised dataset with metadata, as plain Parquet beside its manifest."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.data.dataset.index import index_dataset

NUM_ROWS = 240


@pytest.fixture(scope="session")
def token_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 rows in 3 shards; the label says whether the low tokens outnumber the high ones."""
    folder = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(0)
    tokens = [rng.integers(1, 50, rng.integers(1, 24)) for _ in range(NUM_ROWS)]
    table = pa.table(
        {
            "input_ids": pa.array([row.tolist() for row in tokens], pa.list_(pa.int32())),
            "label": pa.array([int((row < 25).mean() > 0.5) for row in tokens], pa.int8()),
            "language": pa.array([["en", "de", "fr", None][row % 4] for row in range(NUM_ROWS)]),
            "turns": pa.array([None if row % 11 == 0 else row % 7 for row in range(NUM_ROWS)], pa.int64()),
            "shard_id": pa.array([f"key-{row}" for row in range(NUM_ROWS)]),
        }
    )
    (folder / "source").mkdir()
    for shard in range(3):
        rows = table.slice(shard * NUM_ROWS // 3, NUM_ROWS // 3)
        pq.write_table(rows, folder / "source" / f"{shard}.parquet", row_group_size=16)
    index_dataset(str(folder / "source"), folder / "dataset")
    return folder / "dataset"
