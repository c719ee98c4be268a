from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

WriteShard = Callable[..., Path]


def rows(count: int, *, seed: int = 0) -> dict[str, pa.Array]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 30, count)
    tokens = [rng.integers(1, 100, length).tolist() for length in lengths]
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return {
        "input_ids": pa.array(tokens, pa.list_(pa.int32())),
        "attention_mask": pa.array([[1] * len(row) for row in tokens], pa.list_(pa.int8())),
        "language": pa.array([["en", "de", None][row % 3] for row in range(count)]),
        "prompt_length": pa.array(rng.integers(0, 1000, count)),
        "label": pa.array((rng.random(count) < 0.2).astype(np.int8)),
        "shard_id": pa.array([f"key-{row // 4}" for row in range(count)]),
        "created_at": pa.array([start + timedelta(hours=row) for row in range(count)], pa.timestamp("us", "UTC")),
    }


@pytest.fixture
def write_shard(tmp_path: Path) -> WriteShard:
    """Write `source/NAME.parquet`, with some columns replaced (or dropped, by None); returns its path."""

    def write(name: str = "a", count: int = 50, *, seed: int = 0, **columns: pa.Array | None) -> Path:
        path = tmp_path / "source" / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        table = {**rows(count, seed=seed), **columns}
        present = {key: column for key, column in table.items() if column is not None}
        pq.write_table(pa.table(present), path, row_group_size=16)
        return path

    return write
