"""Writes the held-out rows of a split as a dataset of its own, which names its parent.

    dataset --(its row groups, in order)--> held-out rows --> shards of small row groups, indexed

Row groups are small because an evaluation reads rows in shuffled order. Each shard is written atomically and the
manifest last, so an interrupted copy is ignored and written again.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.data.dataset.columns import LABEL
from assay.data.dataset.dataset import NUM_READERS, Dataset
from assay.data.dataset.held_out.copy import copy_folder
from assay.data.dataset.index import TokenizerInfo, index_dataset
from assay.data.dataset.split import SplitConfig, split_sha256, split_view
from assay.records.dataset import DatasetManifest, HeldOutOf
from assay.store.objects import open_store

ROWS_PER_GROUP = 512
ROWS_PER_SHARD = 250_000
AT_ONCE = 64
"""Row groups of the parent that are read before their rows are written."""


def hold_out(dataset: Dataset, split: SplitConfig, progress: Callable[[int, int], None]) -> DatasetManifest:
    """Write the copy, unless it exists; `progress` is called with (row groups read, total row groups)."""
    sha256 = split_sha256(dataset, split)
    view = split_view(dataset, split, "validation")
    folder = copy_folder(dataset.folder, sha256)
    if view.copy is not None:
        return view.copy.manifest
    store, manifest = open_store(str(folder / "shards")), dataset.manifest
    for item in [*store.list("")]:
        store.delete(item.key)
    tables = _tables(dataset, view.read, np.flatnonzero(view.num_rows).tolist(), progress)
    for number, shard in enumerate(_shards(tables)):
        with (
            store.open_writer(f"part-{number:05d}.parquet") as data,
            pq.ParquetWriter(data, shard.schema, compression="zstd") as writer,
        ):
            writer.write_table(shard, row_group_size=ROWS_PER_GROUP)
    return index_dataset(
        str(folder / "shards"),
        folder,
        name=f"{manifest.name}, held out",
        needs_label=LABEL in manifest.columns,
        tokenizer_info=TokenizerInfo.of(manifest),
        scored=manifest.scored,
        held_out_of=HeldOutOf(
            name=manifest.name,
            fingerprint=dataset.fingerprint,
            split=split.model_dump(mode="json"),
            split_sha256=sha256,
        ),
    )


def _tables(
    dataset: Dataset,
    read: Callable[[int, list[str]], pa.Table],
    groups: list[int],
    progress: Callable[[int, int], None],
) -> Iterator[pa.Table]:
    columns, done = list(dataset.manifest.columns), 0
    with ThreadPoolExecutor(NUM_READERS) as pool:
        for begin in range(0, len(groups), AT_ONCE):
            some = groups[begin : begin + AT_ONCE]
            yield from pool.map(lambda group: read(group, columns), some)
            done += len(some)
            progress(done, len(groups))


def _shards(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Concatenate tables into shards of at least `ROWS_PER_SHARD` rows."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= ROWS_PER_SHARD:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()
