"""Adopt Parquet as it is: read every shard once, check it, and write down what it holds.

    shards --(threads)--> ShardScan: digests, row groups, lengths, labels, columns --> manifest folder

The manifest is written last, so an interrupted index leaves nothing that could be taken for a dataset.
"""

import functools
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from assay.base.digest import sha256_of_bytes, sha256_of_json
from assay.base.errors import DataError
from assay.data.dataset.columns import LABEL, MASK, TOKENS, check_same_schema, check_schema
from assay.data.dataset.dataset import FOOTERS_FILE, MANIFEST_FILE, ROW_GROUPS_FILE
from assay.data.dataset.profile import (
    MAX_LENGTH,
    ColumnCounts,
    added,
    is_profiled,
    length_profile,
    merged_columns,
)
from assay.data.dataset.row_groups import RowGroups
from assay.data.dataset.shard_file import chunk_ranges, footer_of
from assay.records.dataset import DatasetManifest, Shard
from assay.store.objects import ObjectStore, open_store

Progress = Callable[[int, int], None]
"""Called with (shards done, shards in all)."""


@dataclass(frozen=True)
class ShardScan:
    """All that indexing learns from one shard."""

    shard: Shard
    schema: pa.Schema
    footer: bytes
    num_rows: list[int]
    num_tokens: list[int]
    chunk_start: list[list[int]]
    chunk_bytes: list[list[int]]
    chunk_digest: list[list[int]]
    rows_of_length: npt.NDArray[np.int64]
    """[number of tokens]: rows."""
    max_token_id: int
    label_counts: Counter[str]
    columns: dict[str, ColumnCounts]


def index_dataset(
    source_url: str,
    out: Path,
    *,
    name: str | None = None,
    needs_label: bool = True,
    workers: int = 2,
    tokenizer_sha256: str | None = None,
    progress: Progress = lambda done, total: None,
) -> DatasetManifest:
    """Index all `*.parquet` under a folder or an object-store prefix; writes the manifest folder `out`."""
    if "://" not in source_url:
        source_url = str(Path(source_url).resolve())
    store = open_store(source_url)
    paths = shard_paths(item.key for item in store.list(""))
    if not paths:
        raise DataError(f"{source_url}: no *.parquet file there. Check the path or the prefix.")
    scans = []
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(scan_shard, store, path, needs_label=needs_label) for path in paths]
        try:
            for done, future in enumerate(futures, start=1):
                scans.append(future.result())
                check_same_schema(
                    scans[-1].schema, scans[0].schema, shard=paths[done - 1], first_shard=paths[0]
                )
                progress(done, len(paths))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return _write(scans, source_url, out, name or _name_of(source_url), tokenizer_sha256)


def shard_paths(keys: Iterable[str]) -> list[str]:
    """The Parquet files among `keys`, sorted.

    Left out, as Spark and pyarrow do: what has a part that starts with `_` or `.` (unfinished writes, logs);
    and the table of row groups of a manifest that was put among the shards.
    """
    keys = set(keys)
    own = {
        key for key in keys if key.rpartition("/")[2] == ROW_GROUPS_FILE and _beside(key, MANIFEST_FILE) in keys
    }
    return sorted(
        key
        for key in keys - own
        if key.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in key.split("/"))
    )


def _beside(key: str, name: str) -> str:
    folder, slash, _ = key.rpartition("/")
    return f"{folder}{slash}{name}"


def scan_shard(store: ObjectStore, path: str, *, needs_label: bool) -> ShardScan:
    """Read one shard whole; raises `DataError` for the first thing that is wrong with it."""
    data = memoryview(store.get(path))
    footer = footer_of(data)
    if footer is None:
        raise DataError(
            f"{path}: not a whole Parquet file ({len(data)} bytes, no footer at the end). It was cut short "
            "while it was written or copied, or it is something else. Write it again, or move it away."
        )
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)))
        check_schema(file.schema_arrow, shard=path, needs_label=needs_label)
        return _scan(file, data, footer, path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be decoded: {error}. Write the file again.") from error


def _scan(file: pq.ParquetFile, data: memoryview, footer: bytes, path: str) -> ShardScan:
    metadata, schema = file.metadata, file.schema_arrow
    if metadata.num_rows == 0:
        raise DataError(f"{path}: has no rows. Delete the file: an empty shard is a sign of a failed write.")
    rows_of_length = np.zeros(0, np.int64)
    max_token_id = 0
    labels: Counter[str] = Counter()
    columns = {field.name: ColumnCounts() for field in schema if is_profiled(field.type)}
    scan = ShardScan(
        shard=Shard(
            path=path,
            num_bytes=len(data),
            num_rows=metadata.num_rows,
            num_row_groups=metadata.num_row_groups,
            sha256=sha256_of_bytes(data),
        ),
        schema=schema.remove_metadata(),
        footer=footer,
        num_rows=[],
        num_tokens=[],
        chunk_start=[],
        chunk_bytes=[],
        chunk_digest=[],
        rows_of_length=np.zeros(0, np.int64),
        max_token_id=0,
        label_counts=labels,
        columns=columns,
    )
    for group in range(metadata.num_row_groups):
        starts, sizes = chunk_ranges(metadata, group)
        scan.chunk_start.append(starts)
        scan.chunk_bytes.append(sizes)
        scan.chunk_digest.append(
            [
                xxhash.xxh3_64_intdigest(data[start : start + size])
                for start, size in zip(starts, sizes, strict=True)
            ]
        )
        table = file.read_row_group(group, columns=[TOKENS, *columns], use_threads=False)
        where = f"{path}: row group {group}"
        lengths = _lengths(table[TOKENS], where)
        rows_of_length = added(rows_of_length, np.bincount(np.minimum(lengths, MAX_LENGTH)))
        max_token_id = max(max_token_id, _max_token_id(table[TOKENS], where))
        scan.num_rows.append(len(table))
        scan.num_tokens.append(int(lengths.sum()))
        if LABEL in columns:
            labels.update(_labels(table[LABEL], where))
        for name, counts in columns.items():
            counts.add(table[name])
    if MASK in schema.names:
        _check_mask(file, path)
    return replace(scan, rows_of_length=rows_of_length, max_token_id=max_token_id)


def _lengths(column: pa.ChunkedArray, where: str) -> npt.NDArray[np.int64]:
    if column.null_count:
        raise DataError(f"{where}: {column.null_count} rows have no {TOKENS} (null). Drop these rows first.")
    lengths: npt.NDArray[np.int64] = pc.list_value_length(column).to_numpy().astype(np.int64)
    if len(lengths) and lengths.min() == 0:
        raise DataError(f"{where}: row {int(lengths.argmin())} has no tokens. Drop empty rows first.")
    return lengths


def _max_token_id(column: pa.ChunkedArray, where: str) -> int:
    tokens = pc.list_flatten(column)
    if tokens.null_count:
        raise DataError(f"{where}: {tokens.null_count} tokens in {TOKENS} are null. Drop or mend these rows.")
    limits = pc.min_max(tokens).as_py()
    if limits["min"] < 0:
        raise DataError(
            f"{where}: {TOKENS} holds {limits['min']}; tokens are 0 or more. Mend these rows first."
        )
    return int(limits["max"])


def _labels(column: pa.ChunkedArray, where: str) -> dict[str, int]:
    if column.null_count:
        raise DataError(f"{where}: {column.null_count} rows have no {LABEL} (null). Drop or label them first.")
    counts = pc.value_counts(column.cast(pa.int64()).combine_chunks())
    pairs = dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True))
    if strange := sorted(set(pairs) - {0, 1}):
        raise DataError(
            f"{where}: {LABEL} has the value {strange[0]} in {pairs[strange[0]]} rows; expected 0 or 1. "
            "Map the labels first."
        )
    return {str(label): count for label, count in pairs.items()}


def _check_mask(file: pq.ParquetFile, path: str) -> None:
    """We never read masks, since they follow from the lengths; make sure on the first rows that they do."""
    table = file.read_row_group(0, columns=[TOKENS, MASK], use_threads=False).slice(0, 64)
    for row, (tokens, mask) in enumerate(zip(table[TOKENS].to_pylist(), table[MASK].to_pylist(), strict=True)):
        if mask is None or len(mask) != len(tokens) or not all(mask):
            raise DataError(
                f"{path}: row {row}: {MASK} is not one 1 for each of the {len(tokens)} tokens. Rows must hold "
                "no padding: cut input_ids where the mask ends."
            )


def _write(
    scans: Sequence[ShardScan], source_url: str, out: Path, name: str, tokenizer_sha256: str | None
) -> DatasetManifest:
    groups = _row_groups(scans)
    schema = scans[0].schema
    row_groups, footers = io.BytesIO(), io.BytesIO()
    pq.write_table(groups.table(), row_groups)
    footer_table = pa.table({"footer": pa.array([scan.footer for scan in scans], pa.large_binary())})
    with pa.ipc.new_file(footers, footer_table.schema) as writer:
        writer.write_table(footer_table)
    columns = merged_columns(scan.columns for scan in scans)
    identity = {
        "columns": {field.name: str(field.type) for field in schema},
        "shards": [[scan.shard.path, scan.shard.sha256, scan.num_rows] for scan in scans],
    }
    manifest = DatasetManifest(
        name=name,
        source_url=_relative_to(out, source_url),
        fingerprint=sha256_of_json(identity),
        row_groups_sha256=sha256_of_bytes(row_groups.getvalue()),
        footers_sha256=sha256_of_bytes(footers.getvalue()),
        columns={field.name: str(field.type) for field in schema},
        shards=tuple(scan.shard for scan in scans),
        num_rows=int(groups.num_rows.sum()),
        num_row_groups=len(groups),
        num_tokens=int(groups.num_tokens.sum()),
        max_token_id=max(scan.max_token_id for scan in scans),
        lengths=length_profile(functools.reduce(added, (scan.rows_of_length for scan in scans))),
        label_counts=dict(sum((scan.label_counts for scan in scans), Counter())),
        column_profiles=tuple(columns[name].profile(name, schema.field(name).type) for name in columns),
        tokenizer_sha256=tokenizer_sha256,
    )
    folder = open_store(str(out))
    folder.delete(MANIFEST_FILE)
    folder.put(FOOTERS_FILE, footers.getvalue())
    folder.put(ROW_GROUPS_FILE, row_groups.getvalue())
    folder.put(MANIFEST_FILE, manifest.to_json().encode())
    return manifest


def _relative_to(out: Path, source_url: str) -> str:
    if "://" in source_url or not Path(source_url).is_relative_to(out.resolve()):
        return source_url
    return Path(source_url).relative_to(out.resolve()).as_posix()


def _row_groups(scans: Sequence[ShardScan]) -> RowGroups:
    num_rows = np.array(list(itertools.chain.from_iterable(scan.num_rows for scan in scans)), np.int64)

    def flat(values: list[list[int]]) -> npt.NDArray[np.int64]:
        return np.array(list(itertools.chain.from_iterable(values)), np.int64)

    def by_column(values: list[list[list[int]]], dtype: type) -> npt.NDArray[np.int64]:
        return np.array(list(itertools.chain.from_iterable(values)), dtype)

    return RowGroups(
        shard_index=np.repeat(np.arange(len(scans)), [len(scan.num_rows) for scan in scans]),
        group_index=flat([list(range(len(scan.num_rows))) for scan in scans]),
        first_row=np.concatenate([[0], np.cumsum(num_rows)[:-1]]),
        num_rows=num_rows,
        num_tokens=flat([scan.num_tokens for scan in scans]),
        chunk_start=by_column([scan.chunk_start for scan in scans], np.int64),
        chunk_bytes=by_column([scan.chunk_bytes for scan in scans], np.int64),
        chunk_digest=by_column([scan.chunk_digest for scan in scans], np.uint64),  # type: ignore[arg-type]
    )


def _name_of(source_url: str) -> str:
    return source_url.rstrip("/").rpartition("/")[2] or "dataset"
