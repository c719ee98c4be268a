"""Writes the held-out rows of a split as a dataset of its own, which names its parent.

    dataset --(its row groups, in order; pool)--> held-out rows --> shards of small row groups, indexed

Row groups are small because an evaluation reads rows in shuffled order. Each shard is written atomically and the
manifest last, so an interrupted copy is ignored and written again.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from assay.data.dataset.columns import LABEL
from assay.data.dataset.dataset import NUM_READERS, Dataset
from assay.data.dataset.held_out.copy import copy_folder
from assay.data.dataset.index import TokenizerInfo, index_dataset
from assay.data.dataset.split import SplitConfig, split_sha256, split_view
from assay.data.pools.pool import Pool, Progress, ThisThread, run_jobs
from assay.records.dataset import DatasetManifest, HeldOutOf
from assay.store.objects import open_store

ROWS_PER_GROUP = 512
ROWS_PER_SHARD = 250_000


def hold_out(dataset: Dataset, split: SplitConfig, progress: Progress, pool: Pool | None = None) -> DatasetManifest:
    """Write the copy, unless it exists; `progress` is called with (shards written, total shards).

    `pool` writes the shards; by default this process writes one after the other.
    """
    sha256 = split_sha256(dataset, split)
    view = split_view(dataset, split, "validation")
    folder = copy_folder(dataset.folder, sha256)
    if view.copy is not None:
        return view.copy.manifest
    store, manifest = open_store(str(folder / "shards")), dataset.manifest
    for item in [*store.list("")]:
        store.delete(item.key)
    groups = [(group, view.selection[group]) for group in np.flatnonzero(view.num_rows).tolist()]
    jobs = [
        (dataset.folder, str(folder / "shards"), f"part-{number:05d}.parquet", groups[begin:end])
        for number, (begin, end) in enumerate(_shards([int(rows.sum()) for _, rows in groups]))
    ]
    for _ in run_jobs(pool or ThisThread(), _write_shard, jobs, progress):
        pass
    return index_dataset(
        str(folder / "shards"),
        folder,
        name=f"{manifest.name}, held out",
        needs_label=LABEL in manifest.columns,
        pool=pool,
        tokenizer_info=TokenizerInfo.of(manifest),
        scored=manifest.scored,
        held_out_of=HeldOutOf(
            name=manifest.name,
            fingerprint=dataset.fingerprint,
            split=split.model_dump(mode="json"),
            split_sha256=sha256,
        ),
    )


def _shards(num_rows: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the row groups [begin, end) of each shard, which has at least `ROWS_PER_SHARD` rows except the last."""
    begin = rows = 0
    for end, count in enumerate(num_rows, start=1):
        rows += count
        if rows >= ROWS_PER_SHARD or end == len(num_rows):
            yield begin, end
            begin, rows = end, 0


def _write_shard(folder: Path, target: str, name: str, groups: list[tuple[int, npt.NDArray[np.bool_]]]) -> None:
    dataset = Dataset.open(folder)
    columns = list(dataset.manifest.columns)

    def read(group: tuple[int, npt.NDArray[np.bool_]]) -> pa.Table:
        table = dataset.read_row_group(group[0], columns)
        return table if group[1].all() else table.filter(pa.array(group[1]))

    with ThreadPoolExecutor(NUM_READERS) as readers:
        shard = pa.concat_tables(readers.map(read, groups)).combine_chunks()
    with (
        open_store(target).open_writer(name) as data,
        pq.ParquetWriter(data, shard.schema, compression="zstd") as writer,
    ):
        writer.write_table(shard, row_group_size=ROWS_PER_GROUP)
