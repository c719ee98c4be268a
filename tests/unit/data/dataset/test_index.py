import errno
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.base.errors import ConfigError, DamagedDataError, DataError, StoreError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset


def index(tmp_path: Path, **options: object):
    return index_dataset(str(tmp_path / "source"), tmp_path / "dataset", **options)


def test_a_manifest_says_what_the_shards_hold(tmp_path: Path, write_shard) -> None:
    paths = [write_shard("a", 50, seed=1), write_shard("b", 20, seed=2)]
    manifest = index(tmp_path)
    tables = [pq.read_table(path) for path in paths]
    labels = np.concatenate([table["label"].to_numpy() for table in tables])
    lengths = np.concatenate([[len(row) for row in table["input_ids"].to_pylist()] for table in tables])
    assert manifest.num_rows == 70
    assert manifest.num_row_groups == 4 + 2
    assert manifest.num_tokens == lengths.sum()
    assert manifest.lengths.max == lengths.max()
    assert manifest.lengths.mean == pytest.approx(lengths.mean())
    assert sum(manifest.lengths.histogram_rows) == 70
    assert manifest.label_counts == {"0": int((labels == 0).sum()), "1": int(labels.sum())}
    language = next(column for column in manifest.column_profiles if column.name == "language")
    assert language.missing_rate == pytest.approx(sum(table["language"].null_count for table in tables) / 70)


def test_the_fingerprint_depends_on_bytes_and_names_and_nothing_else(tmp_path: Path, write_shard) -> None:
    path = write_shard("a")
    first = index(tmp_path).fingerprint
    assert index(tmp_path, workers=1, name="another").fingerprint == first
    write_shard("a", seed=3)
    changed = index(tmp_path).fingerprint
    path.rename(path.with_name("c.parquet"))
    assert len({first, changed, index(tmp_path).fingerprint}) == 3


def test_row_groups_read_back_as_they_were_written_whatever_columns_are_asked_for(tmp_path: Path, write_shard) -> None:
    table = pq.read_table(write_shard("a"))
    index(tmp_path)
    dataset = Dataset.open(tmp_path / "dataset")
    for group in range(len(dataset.groups)):
        start = int(dataset.groups.first_row[group])
        for columns in (["input_ids"], ["label", "language"], table.column_names):
            read = dataset.read_row_group(group, columns)
            expected = table.slice(start, int(dataset.groups.num_rows[group]))
            assert read.to_pydict() == {name: expected[name].to_pylist() for name in read.column_names}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_ids": pa.array(["text"] * 50)}, "'input_ids' has type string"),
        ({"input_ids": pa.array([[0.5]] * 50)}, "'input_ids' has type list<element: double>"),
        ({"label": pa.array([[1]] * 50)}, "'label' has type list"),
        ({"label": pa.array([0.5, float("inf")] * 25)}, "label is inf in 8 rows; a number to learn is finite"),
        ({"label": pa.array([0.5, float("nan")] * 25)}, "label is nan in 8 rows"),
        (
            {"label": pa.array([0, 2**63] * 25, pa.uint64())},
            "label is no class and no number to learn: Integer value",
        ),
        ({"label": None}, "'label' is missing"),
        ({"input_ids": None}, "'input_ids' is missing"),
        ({"label": pa.array([0, None] * 25)}, "have no label"),
        ({"input_ids": pa.array([[1], []] * 25, pa.list_(pa.int32()))}, "has no tokens"),
        ({"input_ids": pa.array([[1], None] * 25, pa.list_(pa.int32()))}, "have no input_ids"),
        ({"input_ids": pa.array([[1], [-100]] * 25, pa.list_(pa.int32()))}, "holds -100"),
        ({"input_ids": pa.array([[1], [None]] * 25, pa.list_(pa.int32()))}, "8 tokens in input_ids are null"),
        ({"attention_mask": pa.array([[1, 0]] * 50)}, "attention_mask is not one 1 for each"),
    ],
)
def test_what_training_could_not_use_is_one_error_that_names_the_shard(
    tmp_path: Path, write_shard, columns: dict[str, pa.Array | None], message: str
) -> None:
    write_shard("good", 10)
    write_shard("odd", 50, **columns)
    with pytest.raises(DataError, match=r"odd\.parquet") as caught:
        index(tmp_path)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "dataset").exists()


def test_unfinished_writes_and_a_manifest_among_the_shards_are_no_shards(tmp_path: Path, write_shard) -> None:
    write_shard("a")
    source = tmp_path / "source"
    first = index_dataset(str(source), source)
    (source / "_temporary").mkdir()
    (source / "_temporary" / "b.parquet").write_bytes(b"half")
    (source / ".b.parquet").write_bytes(b"half")
    again = index_dataset(str(source), source)
    assert [shard.path for shard in again.shards] == ["a.parquet"]
    assert again.fingerprint == first.fingerprint


def test_a_dataset_that_holds_its_own_shards_can_be_moved(tmp_path: Path, write_shard) -> None:
    write_shard("a")
    index_dataset(str(tmp_path / "source"), tmp_path)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("source", "manifest.json", "row_groups.parquet", "footers.arrow"):
        (tmp_path / name).rename(moved / name)
    assert Dataset.open(moved).read_row_group(0, ["label"]).num_rows == 16


def test_columns_of_every_kind_have_a_profile(tmp_path: Path, write_shard) -> None:
    unusual = {
        "score": pa.array([0.5, float("nan"), None, 1.5, 4.0] * 10),
        "nothing": pa.array([None] * 50, pa.string()),
        "kind": pa.array(["x", "y"] * 25).dictionary_encode(),
        "long": pa.array(["x", None] * 25, pa.large_string()),
        "lasted": pa.array([1, 2] * 25, pa.duration("s")),
        "day": pa.array([1, 2] * 25, pa.date32()),
        "bytes": pa.array([b"1", None] * 25),
    }
    write_shard("a", **unusual)
    columns = {column.name: column for column in index(tmp_path).column_profiles}
    assert columns["score"].missing_rate == pytest.approx(0.4)
    assert (columns["score"].minimum, columns["score"].maximum) == ("0.5", "4.0")
    assert columns["score"].mean == pytest.approx(2.0)
    assert columns["nothing"].missing_rate == 1.0
    assert columns["kind"].top_values == (("x", 25), ("y", 25))
    assert (columns["long"].missing_rate, columns["long"].top_values) == (0.5, (("x", 25),))
    assert columns["day"].maximum == "1970-01-03"
    assert columns["bytes"].missing_rate == 0.5


def test_the_largest_token_is_on_record(tmp_path: Path, write_shard) -> None:
    write_shard("a", 2, input_ids=pa.array([[1, 7], [5]], pa.list_(pa.int32())), attention_mask=None)
    write_shard("b", 2, input_ids=pa.array([[3], [30_521]], pa.list_(pa.int32())), attention_mask=None)
    assert index(tmp_path).max_token_id == 30_521


def test_a_full_disk_is_one_error_that_leaves_the_rows_manifest_or_none(
    tmp_path: Path, write_shard, monkeypatch
) -> None:
    write_shard("a")
    before = index(tmp_path)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"disk is full: free some space"):
        index(tmp_path)
    assert Dataset.open(tmp_path / "dataset").fingerprint == before.fingerprint
    write_shard("b", seed=2)
    with pytest.raises(StoreError, match=r"disk is full: free some space"):
        index(tmp_path)
    assert not (tmp_path / "dataset" / "manifest.json").exists()


def test_who_minds_that_other_rows_are_indexed_over_is_asked_before_anything_changes(
    tmp_path: Path, write_shard
) -> None:
    write_shard("a")
    index(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "dataset").iterdir()}

    def refuse() -> None:
        raise ConfigError("a run learned these")

    index(tmp_path, replacing=refuse)  # the same again replaces nothing
    write_shard("b", seed=2)
    with pytest.raises(ConfigError, match="a run learned these"):
        index(tmp_path, replacing=refuse)
    assert before == {path: path.read_bytes() for path in (tmp_path / "dataset").iterdir()}


def test_shards_of_different_schemas_are_refused(tmp_path: Path, write_shard) -> None:
    write_shard("a")
    write_shard("b", language=pa.array([1] * 50))
    with pytest.raises(DataError, match=r"b.parquet.*'language' is int64 here and string there"):
        index(tmp_path)


def test_empty_and_truncated_shards_are_refused(tmp_path: Path, write_shard) -> None:
    path = write_shard("a", 0)
    with pytest.raises(DataError, match=r"a.parquet: has no rows"):
        index(tmp_path)
    whole = write_shard("a").read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"a.parquet: not a whole Parquet file"):
            index(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"no \*.parquet file there"):
        index(tmp_path)


def test_a_byte_that_changes_after_indexing_is_found_when_its_column_is_read(tmp_path: Path, write_shard) -> None:
    path = write_shard("a")
    index(tmp_path)
    dataset = Dataset.open(tmp_path / "dataset")
    data = bytearray(path.read_bytes())
    label = list(pq.read_schema(path).names).index("label")
    data[int(dataset.groups.chunk_start[1, label]) + 5] ^= 1
    path.write_bytes(data)
    dataset.read_row_group(0, ["label"])
    dataset.read_row_group(1, ["input_ids"])
    with pytest.raises(DamagedDataError, match=r"a.parquet: row group 1, column 'label'"):
        dataset.read_row_group(1, ["label"])
    assert list(dataset.changed_shards()) == ["a.parquet"]


def test_a_shard_that_was_cut_short_or_removed_is_damage(tmp_path: Path, write_shard) -> None:
    path = write_shard("a")
    index(tmp_path)
    dataset = Dataset.open(tmp_path / "dataset")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DamagedDataError, match=r"a.parquet ends before byte \d+; it was indexed with \d+ bytes"):
        dataset.read_row_group(3, ["label"])
    path.unlink()
    with pytest.raises(DamagedDataError, match=r"a.parquet is missing; it was indexed with \d+ bytes"):
        dataset.read_row_group(0, ["label"])
    assert dataset.changed_shards() == {"a.parquet": "is missing"}


@pytest.mark.parametrize("name", ["row_groups.parquet", "footers.arrow"])
def test_a_manifest_whose_table_was_replaced_is_refused(tmp_path: Path, write_shard, name: str) -> None:
    write_shard("a")
    index(tmp_path)
    table = tmp_path / "dataset" / name
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(DataError, match="Index the dataset again"):
        Dataset.open(tmp_path / "dataset")
