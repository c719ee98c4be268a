from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset
from assay.data.dataset.leaks import find_leaks
from assay.data.dataset.split import HashSplit, split_view


@pytest.mark.parametrize("copied", [0, 1, 7])
def test_copies_across_the_split_are_counted_and_named(tmp_path: Path, write_shard, copied: int) -> None:
    tokens = [[row + 1] * (1 + row % 5) for row in range(200)]
    keys = [f"key-{row // 4}" for row in range(200)]
    config = HashSplit(validation_fraction=0.3)
    columns = {"shard_id": pa.array(keys), "attention_mask": None}

    def views(rows: list[list[int]]):
        write_shard("a", 200, input_ids=pa.array(rows, pa.list_(pa.int32())), **columns)
        index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
        dataset = Dataset.open(tmp_path / "dataset")
        return [split_view(dataset, config, part) for part in ("train", "validation")]

    learned, held_out = (
        np.concatenate([view.row_ids(group) for group in range(len(view.num_rows))]) for view in views(tokens)
    )
    for source, target in zip(
        learned[:copied].tolist(), held_out[-copied:].tolist() if copied else [], strict=True
    ):
        tokens[target] = tokens[source]
    leak = find_leaks(*views(tokens))
    assert (leak.num_rows, leak.num_validation_rows) == (copied, len(held_out))
    assert set(leak.examples) <= set(held_out[-copied:].tolist() if copied else [])
    assert len(leak.examples) == min(copied, 5)
