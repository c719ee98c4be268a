"""Held-out rows that were copied beside the manifest are evaluated as if they were read from the dataset."""

from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.base.errors import DamagedDataError, DataError
from assay.cli.main import main
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.held_out import copy, write
from assay.data.dataset.held_out.write import hold_out
from assay.data.dataset.index import index_dataset
from assay.data.dataset.row_groups import RowGroups
from assay.data.dataset.split import HashSplit, SelectedRows, TimeSplit, split_view
from assay.data.loader.config import LoaderConfig
from assay.data.loader.loader import Loader
from assay.records.cursor import Cursor

COLUMNS = ("input_ids", "label", "created_at", "shard_id")
UNDISTURBED = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_source_dataset(folder: Path, rng: np.random.Generator, *, num_shards: int, share: float) -> Dataset:
    """Rows with times in no order, so that those from a moment on lie anywhere."""
    for shard in range(num_shards):
        count = int(rng.integers(1, 120))
        table = pa.table(
            {
                "input_ids": pa.array(
                    [rng.integers(0, 100, size).tolist() for size in rng.integers(1, 9, count)],
                    pa.list_(pa.int32()),
                ),
                "label": pa.array(rng.integers(0, 2, count)),
                "created_at": pa.array(
                    np.where(rng.random(count) < share, "2026-06-01T00:00:00", "2026-01-01T00:00:00")
                ),
                "shard_id": pa.array([f"{shard}-{row // 3}" for row in range(count)]),
            }
        )
        (folder / "source").mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / "source" / f"{shard}.parquet", row_group_size=int(rng.integers(1, 40)))
    index_dataset(str(folder / "source"), folder / "dataset")
    return Dataset.open(folder / "dataset")


def batches(dataset: Dataset, split: HashSplit | TimeSplit, config: LoaderConfig) -> list[list[object]]:
    """All that an evaluation is given, in its order."""
    loader = Loader(split_view(dataset, split, "validation"), config, COLUMNS)
    shares = loader.shares(Cursor(), range(config.lanes), loader.steps_per_epoch)
    return [
        [
            batch.row_ids.tolist(),
            {name: ragged.values.tolist() for name, ragged in batch.ragged.items()},
            {name: column.to_pylist() for name, column in batch.columns.items()},
        ]
        for share in shares
        for lane in share.lanes
        for batch in lane.micro_batches
    ]


@pytest.mark.slow
@UNDISTURBED
@given(seed=st.integers(0, 2**32), num_shards=st.integers(1, 3), share=st.sampled_from([0.02, 0.1, 0.5, 0.95]))
def test_an_evaluation_of_the_copy_has_the_same_batches_as_one_of_the_dataset(
    tmp_path_factory: pytest.TempPathFactory, seed: int, num_shards: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    dataset = write_source_dataset(tmp_path_factory.mktemp("held-out"), rng, num_shards=num_shards, share=share)
    split = TimeSplit(type="time", validation_from=datetime(2026, 3, 1))
    times = dataset.map_groups(lambda group: dataset.read_row_group(group, ["created_at"])["created_at"].to_pylist())
    if len({time for group in times for time in group}) < 2:
        return  # all rows on one side: refused
    config = LoaderConfig(lanes=4, global_batch_size=8, window_rows=int(rng.integers(2, 40)), seed=seed % 1000)
    parent = split_view(dataset, split, "validation")
    before, fingerprint = batches(dataset, split, config), split_view(dataset, split, "validation").fingerprint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "ROWS_PER_GROUP", int(rng.integers(1, 20)))
        patch.setattr(write, "ROWS_PER_SHARD", int(rng.integers(1, 60)))
        patch.setattr(copy, "CACHE_BYTES", int(rng.integers(0, 4000)))
        manifest = hold_out(dataset, split, lambda done, total: None)
        assert batches(dataset, split, config) == before
        copied = split_view(dataset, split, "validation")
        for group in range(len(dataset.groups)):
            for columns in (["label"], [*COLUMNS]):
                assert copied.read(group, columns).to_pydict() == parent.read(group, columns).to_pydict()
    assert split_view(dataset, split, "validation").fingerprint == fingerprint
    assert manifest.num_rows == sum(len(batch[0]) for batch in before)
    assert manifest.held_out_of is not None
    assert manifest.held_out_of.fingerprint == dataset.fingerprint


@given(st.lists(st.lists(st.booleans(), max_size=20), min_size=1, max_size=8), st.booleans())
def test_selected_rows_are_those_whose_bits_are_set(rows: list[list[bool]], others: bool) -> None:
    sizes = np.array([len(group) for group in rows])
    nothing = np.zeros(len(rows), np.int64)
    nowhere = nothing.astype(np.uint64)
    groups = RowGroups(nothing, nothing, np.cumsum(sizes) - sizes, sizes, nothing, nothing, nothing, nowhere)
    selected = SelectedRows(
        np.packbits(np.concatenate([np.array(group, bool) for group in rows])), groups, others=others
    )
    assert [group.tolist() for group in selected] == [[row != others for row in group] for group in rows]
    assert selected.counts().tolist() == [sum(row != others for row in group) for group in rows]


@pytest.fixture
def scattered(tmp_path: Path) -> Dataset:
    return write_source_dataset(tmp_path, np.random.default_rng(0), num_shards=2, share=0.2)


SPLIT = TimeSplit(type="time", validation_from=datetime(2026, 3, 1))


def test_a_copy_is_written_once_and_never_indexed_with_the_dataset(scattered: Dataset, capsys) -> None:
    arguments = ["data", "hold-out", str(scattered.folder), "--since", "2026-03-01"]
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    (folder,) = (scattered.folder / "_held-out").iterdir()
    assert str(folder) in capsys.readouterr().out
    copied = Dataset.open(folder)
    assert copied.manifest.held_out_of.split["type"] == "time"
    ids = {
        tuple(row)
        for group in range(len(copied.groups))
        for row in copied.read_row_group(group, ["input_ids"])["input_ids"].to_pylist()
    }
    assert len(ids) > 1


def test_an_interrupted_copy_is_none_and_is_written_anew(scattered: Dataset) -> None:
    manifest = hold_out(scattered, SPLIT, lambda done, total: None)
    (folder,) = (scattered.folder / "_held-out").iterdir()
    (folder / "manifest.json").unlink()
    assert split_view(scattered, SPLIT, "validation").copy is None
    assert hold_out(scattered, SPLIT, lambda done, total: None).fingerprint == manifest.fingerprint
    assert split_view(scattered, SPLIT, "validation").copy is not None


def test_a_copy_of_other_rows_is_refused_and_a_changed_one_is_damage(scattered: Dataset, tmp_path: Path) -> None:
    hold_out(scattered, SPLIT, lambda done, total: None)
    other = HashSplit(validation_fraction=0.5)
    hold_out(scattered, other, lambda done, total: None)
    own, parent = (
        copy.copy_folder(scattered.folder, split_sha) for split_sha in map(sha256_of, (SPLIT, other), [scattered] * 2)
    )
    parent.rename(tmp_path / "theirs")
    own.rename(parent)
    with pytest.raises(DataError, match=r"not the held-out rows of .* writes it again"):
        split_view(scattered, other, "validation")
    (tmp_path / "theirs").rename(own)
    parent.rename(tmp_path / "again")
    own.rename(parent)
    shard = next((parent / "shards").iterdir())
    content = bytearray(shard.read_bytes())
    content[20] ^= 1
    shard.write_bytes(content)
    view = split_view(scattered, other, "validation")
    with pytest.raises(DamagedDataError, match="part-00000"):
        for group in np.flatnonzero(view.num_rows):
            view.read(int(group), COLUMNS)


def sha256_of(split: HashSplit | TimeSplit, dataset: Dataset) -> str:
    from assay.data.dataset.split import split_sha256

    return split_sha256(dataset, split)
