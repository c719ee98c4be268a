"""The loaders: each a function that yields batches for an epoch, and what it needs written beforehand.

Peers run with one process and their own defaults for a shuffled epoch (buffers of 10,000 rows where there is a
buffer), only the columns that are needed, and rows taken in the cheapest form that they offer.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from loader_rows import BATCH_ROWS, BUFFER_ROWS, COLUMNS, Batch, finished, padded_batch, shards


class Reader(NamedTuple):
    """One competitor."""

    epoch: Callable[[Path], Iterator[Batch]]
    prepare: Callable[[Path], None] = lambda folder: None
    resumed: Callable[[Path, int], Iterator[Batch]] | None = None
    """From the given batch on, as a new process would after a crash; None where it cannot be done."""


# The floor: what decoding and padding cost by themselves.


def ideal(folder: Path) -> Iterator[Batch]:
    """Row groups one after another, no shuffle, straight into padded arrays."""
    for path in shards(folder):
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            yield from _batches(file.read_row_group(group, columns=list(COLUMNS), use_threads=False))


def _batches(table: pa.Table) -> Iterator[Batch]:
    lists = table["input_ids"].chunk(0)
    offsets, tokens = lists.offsets.to_numpy(), lists.values.to_numpy()
    labels, keys = table["label"].to_numpy(), table["row_key"].to_numpy()
    for start in range(0, len(labels), BATCH_ROWS):
        rows = slice(start, min(start + BATCH_ROWS, len(labels)))
        edges = offsets[rows.start : rows.stop + 1]
        lengths = np.diff(edges)
        input_ids = np.zeros((len(lengths), lengths.max()), np.int64)
        for line, first, length in zip(input_ids, edges.tolist(), lengths.tolist(), strict=False):
            line[:length] = tokens[first : first + length]
        yield finished(torch.from_numpy(input_ids), lengths, labels[rows], keys[rows])


# Ours.


def index(folder: Path) -> None:
    """The manifest."""
    from assay.data.dataset.index import index_dataset

    index_dataset(str(folder), folder.parent / "index")


def assay_reader(layout: dict[str, Any]) -> Callable[..., Iterator[Batch]]:
    """A loader of one lane, 32 rows a step, that mixes as it does by default."""

    def batches(folder: Path, start: int = 0) -> Iterator[Batch]:
        from assay.data.dataset.dataset import Dataset
        from assay.data.dataset.split import whole_view
        from assay.data.loader.config import LoaderConfig
        from assay.data.loader.loader import Loader

        config = LoaderConfig(lanes=1, global_batch_size=BATCH_ROWS, layout=layout, threads=1)
        loader = Loader(whole_view(Dataset.open(folder.parent / "index")), config, COLUMNS)
        steps = loader.steps_per_epoch - start
        for share in loader.shares(loader.cursor_at(start), range(1), steps):
            yield from map(_batch, share.lanes[0].micro_batches)

    return batches


def assay_torch(folder: Path, start: int = 0) -> Iterator[Batch]:
    """The same rows by `assay.torch`, as other training loops read them."""
    from assay.torch import RowLoader

    index_folder, size = folder.parent / "index", BATCH_ROWS
    loader: Any = RowLoader(index_folder, _batch, global_batch_size=size, columns=COLUMNS, lanes=1, threads=1)
    loader.load_state_dict(loader.state_dict(step=start))
    yield from loader


def _batch(rows: Any) -> Any:
    labels = rows.columns["label"].to_numpy(zero_copy_only=False)
    return finished(
        torch.from_numpy(rows.tokens.values), rows.tokens.lengths, labels, rows.columns["row_key"].to_numpy()
    )


# Peers that read Parquet as it is.


def hugging_face(folder: Path) -> Iterator[Batch]:
    return _collated(map(_as_row, _hugging_face(folder)))


def hugging_face_resumed(folder: Path, start: int) -> Iterator[Batch]:
    dataset = _hugging_face(folder)
    for _, _ in zip(range(start * BATCH_ROWS), dataset, strict=False):
        pass
    state = dataset.state_dict()
    yield from _marked()
    dataset = _hugging_face(folder)
    dataset.load_state_dict(state)
    yield from _collated(map(_as_row, dataset))


def _hugging_face(folder: Path) -> Any:
    import datasets

    stream = datasets.load_dataset(
        "parquet", data_files=shards(folder), split="train", streaming=True, columns=list(COLUMNS)
    )
    return stream.shuffle(seed=0, buffer_size=BUFFER_ROWS)


def grain_parquet(folder: Path) -> Iterator[Batch]:
    return _collated(map(_as_row, _grain(folder)))


def grain_parquet_resumed(folder: Path, start: int) -> Iterator[Batch]:
    rows = iter(_grain(folder))
    for _ in range(start * BATCH_ROWS):
        next(rows)
    state = rows.get_state()
    yield from _marked()
    rows = iter(_grain(folder))
    rows.set_state(state)
    yield from _collated(map(_as_row, rows))


def _grain(folder: Path) -> Any:
    """It has no way to read some columns only."""
    import grain

    paths = np.random.default_rng(0).permutation(shards(folder)).tolist()
    dataset = grain.experimental.InterleaveIterDataset(
        [grain.experimental.ParquetIterDataset(path) for path in paths], cycle_length=8
    )
    return grain.experimental.WindowShuffleIterDataset(dataset, window_size=BUFFER_ROWS, seed=0)


# Peers that need the rows in a format of their own.


def litdata_convert(folder: Path) -> None:
    import litdata

    litdata.optimize(
        fn=_litdata_rows,
        inputs=shards(folder),
        output_dir=str(folder.parent / "litdata"),
        chunk_bytes="32MB",
        num_workers=1,
        mode="overwrite",
        verbose=False,
    )


def _litdata_rows(path: str) -> Iterator[dict[str, Any]]:
    for tokens, label, key in _rows(path):
        yield {"input_ids": tokens, "label": label, "row_key": key}


def litdata_converted(folder: Path, start: int = 0) -> Iterator[Batch]:
    import litdata

    def loader() -> Any:
        dataset = litdata.StreamingDataset(str(folder.parent / "litdata"), shuffle=True, seed=0, drop_last=False)
        return litdata.StreamingDataLoader(dataset, batch_size=BATCH_ROWS, num_workers=0, collate_fn=_collate)

    batches = loader()
    if start:
        state = None
        for _, _ in zip(range(start), batches, strict=False):
            state = batches.state_dict()
        yield from _marked()
        batches = loader()
        batches.load_state_dict(state)
    yield from batches


READERS: dict[str, Reader] = {
    "ideal": Reader(ideal),
    "assay padded": Reader(assay_reader({"type": "padded"}), index, assay_reader({"type": "padded"})),
    "assay bucketed": Reader(assay_reader({"type": "bucketed"}), index, assay_reader({"type": "bucketed"})),
    "assay.torch": Reader(assay_torch, index, assay_torch),
    "Grain Parquet": Reader(grain_parquet, resumed=grain_parquet_resumed),
    "HF streaming": Reader(hugging_face, resumed=hugging_face_resumed),
    "LitData converted": Reader(litdata_converted, litdata_convert, litdata_converted),
}

RESUME_MARK = None
"""Yielded by a `resumed` reader when it has gone as far as it must: from here on the clock counts."""


def _marked() -> Iterator[Any]:
    yield RESUME_MARK


def _rows(path: str) -> Iterator[tuple[np.ndarray, int, int]]:
    table = pq.read_table(path, columns=list(COLUMNS))
    lists = table["input_ids"].combine_chunks()
    for row in range(len(table)):
        tokens = np.asarray(lists[row].values)
        yield tokens, table["label"][row].as_py(), table["row_key"][row].as_py()


def _as_row(row: dict[str, Any]) -> tuple[np.ndarray, int, int]:
    return np.asarray(row["input_ids"]), row["label"], row["row_key"]


def _collate(rows: list[Any]) -> Batch:
    return padded_batch(*zip(*map(_as_row, rows), strict=True))


def _collated(rows: Iterator[tuple[np.ndarray, int, int]]) -> Iterator[Batch]:
    waiting = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == BATCH_ROWS:
            yield padded_batch(*zip(*waiting, strict=True))
            waiting = []
    if waiting:
        yield padded_batch(*zip(*waiting, strict=True))
