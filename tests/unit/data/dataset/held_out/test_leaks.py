from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from assay.base.errors import ConfigError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.held_out import leaks
from assay.data.dataset.held_out.leaks import find_leaks, quick_leaks
from assay.data.dataset.index import index_dataset
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

    train_ids, held_out = (
        np.concatenate([view.row_ids(group) for group in range(len(view.num_rows))]) for view in views(tokens)
    )
    for source, target in zip(train_ids[:copied].tolist(), held_out[-copied:].tolist() if copied else [], strict=True):
        tokens[target] = tokens[source]
    leak = find_leaks(*views(tokens))
    assert (leak.num_rows, leak.num_validation_rows) == (copied, len(held_out))
    assert set(leak.examples) <= set(held_out[-copied:].tolist() if copied else [])
    assert len(leak.examples) == min(copied, 5)


@pytest.fixture
def leaky(tmp_path: Path, write_shard) -> Dataset:
    """200 adopted rows: twenty texts, each under ten keys."""
    tokens = pa.array([[row % 20 + 1] * 3 for row in range(200)], pa.list_(pa.int32()))
    keys = pa.array([f"key-{row // 20}" for row in range(200)])
    write_shard("a", 200, input_ids=tokens, shard_id=keys, attention_mask=None)
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    return Dataset.open(tmp_path / "dataset")


def test_a_large_dataset_is_not_searched_unasked(leaky: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    split = HashSplit(validation_fraction=0.4)
    found = quick_leaks(leaky, split)
    assert found is not None
    assert found.num_rows == found.num_validation_rows > 0, "each text is under every key"
    monkeypatch.setattr(leaks, "QUICK_TOKENS", leaky.manifest.num_tokens - 1)
    assert quick_leaks(leaky, split) is None


def test_copies_are_left_out_of_validation_and_training_reads_as_it_did(tmp_path: Path, write_shard) -> None:
    tokens = [[row + 1] * 3 for row in range(180)] + [[row + 1] * 3 for row in range(20)]
    write_shard("a", 200, input_ids=pa.array(tokens, pa.list_(pa.int32())), attention_mask=None)
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    dataset = Dataset.open(tmp_path / "dataset")
    before = HashSplit(validation_fraction=0.4)
    after = before.model_copy(update={"drop_leaks": True})
    train, leaking = (split_view(dataset, before, part) for part in ("train", "validation"))
    leak = find_leaks(train, leaking)
    assert 0 < leak.num_rows < leak.num_validation_rows
    for _ in range(2):  # the second time as it was kept
        same, clean = (split_view(dataset, after, part) for part in ("train", "validation"))
        assert find_leaks(same, clean).num_rows == 0
        assert clean.num_rows.sum() == leak.num_validation_rows - leak.num_rows
        assert same.fingerprint == train.fingerprint and clean.fingerprint != leaking.fingerprint


def test_where_every_held_out_row_leaks_the_tokens_can_be_what_splits(leaky: Dataset) -> None:
    by_key = HashSplit(validation_fraction=0.3, drop_leaks=True)
    with pytest.raises(ConfigError, match=r"leaves no validation rows.*`column: input_ids`"):
        split_view(leaky, by_key, "validation")
    by_text = HashSplit(column="input_ids", validation_fraction=0.3)
    train, validation = (split_view(leaky, by_text, part) for part in ("train", "validation"))
    assert find_leaks(train, validation).num_rows == 0
    assert train.num_rows.sum() + validation.num_rows.sum() == 200
