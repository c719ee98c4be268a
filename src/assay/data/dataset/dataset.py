"""An opened dataset: its manifest, its row groups, and verified access to their rows."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from assay.base.digest import sha256_of_bytes, sha256_of_json
from assay.base.errors import DamagedDataError, DataError, StoreError
from assay.data.dataset.manifest_file import MANIFEST_FILE, check_is_dataset
from assay.data.dataset.partitions import partition_values, with_partitions
from assay.data.dataset.row_groups import RowGroups, read_row_groups, row_group_identities
from assay.data.dataset.shard_file import SparseFile, parse_footer, read_group
from assay.records.dataset import DatasetManifest, Shard
from assay.store.objects import open_store
from assay.store.retry_policy import RetryPolicy

ROW_GROUPS_FILE = "row_groups.parquet"
FOOTERS_FILE = "footers.arrow"
MAX_OPEN_SHARDS = 256
NUM_READERS = 8
"""Row groups that a full pass reads concurrently, because object stores have high latency."""
NUM_CHECKERS = 4
"""Shards that a check of digests holds in memory concurrently."""
Result = TypeVar("Result")


class Dataset:
    """A dataset opened from its manifest folder; the shards are read where they are."""

    def __init__(
        self, folder: Path, manifest: DatasetManifest, groups: RowGroups, retry_policy: RetryPolicy | None = None
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.groups = groups
        self.identities = row_group_identities([shard.path for shard in manifest.shards], groups)
        self._store = open_store(source_url(folder, manifest), retry_policy)
        self._footers = pa.memory_map(str(folder / FOOTERS_FILE))
        self._footer_column = pa.ipc.open_file(self._footers).read_all()["footer"]
        self._metadata = lru_cache(maxsize=MAX_OPEN_SHARDS)(self._parse_footer)

    @classmethod
    def open(cls, folder: Path, retry_policy: RetryPolicy | None = None) -> Self:
        check_is_dataset(folder)
        path = folder / MANIFEST_FILE
        manifest = DatasetManifest.from_json(path.read_bytes(), source=path)
        digests = {ROW_GROUPS_FILE: manifest.row_groups_sha256, FOOTERS_FILE: manifest.footers_sha256}
        for name, sha256 in digests.items():
            file = folder / name
            if not file.is_file() or sha256_of_bytes(file.read_bytes()) != sha256:
                raise DataError(f"{file}: not the file that {MANIFEST_FILE} names. Index the dataset again.")
        groups = read_row_groups(folder / ROW_GROUPS_FILE)
        if manifest.fingerprint != dataset_fingerprint(manifest.columns, manifest.shards, groups):
            raise DataError(
                f"{path}: its fingerprint does not match the columns and shards that it lists: the file was "
                "changed. Restore it, or index the dataset again."
            )
        return cls(folder, manifest, groups, retry_policy)

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    def shard_path(self, group: int) -> str:
        return self.manifest.shards[int(self.groups.shard_index[group])].path

    def row_location(self, row: int) -> str:
        groups = self.groups
        group = int(np.searchsorted(groups.first_row, row, side="right")) - 1
        return (
            f"{self.shard_path(group)}, row group {int(groups.group_index[group])}, "
            f"row {row - int(groups.first_row[group])} of it"
        )

    def read_row_group(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Read columns of a row group; each column chunk's digest is checked before it is decoded."""
        groups = self.groups
        shard_index, in_shard = int(groups.shard_index[group]), int(groups.group_index[group])
        shard, metadata = self.manifest.shards[shard_index], self._metadata(shard_index)
        from_path = self._partitions_of(shard, metadata, columns)
        in_file = [name for name in columns if name not in {field.name for field in from_path}]
        if not in_file:
            return with_partitions(pa.table({}), shard.path, from_path, int(groups.num_rows[group]))
        leaves = self.leaf_columns(shard_index)
        leaf_indices = [
            leaf for leaf, path in enumerate(leaves) if f"{path}.".startswith(tuple(f"{name}." for name in in_file))
        ]
        starts, sizes, digests = (
            values[group, leaf_indices].tolist()
            for values in (groups.chunk_start, groups.chunk_bytes, groups.chunk_digest)
        )
        parts = self._fetch(shard, starts, [start + size for start, size in zip(starts, sizes, strict=True)])
        for leaf, part, expected in zip(leaf_indices, parts, digests, strict=True):
            if (digest := xxhash.xxh3_64_intdigest(part)) != expected:
                raise DamagedDataError(
                    f"{shard.path}: row group {in_shard}, column '{leaves[leaf]}' has digest {digest:016x}, "
                    f"the manifest says {expected:016x}. The file changed after it was indexed. {_HINT}"
                )
        table = read_group(metadata, in_shard, SparseFile(starts, parts, shard.num_bytes), in_file)
        return with_partitions(table, shard.path, from_path, int(groups.num_rows[group])) if from_path else table

    def map_groups(self, work: Callable[[int], Result]) -> list[Result]:
        """Return `work(group)` for every row group, in order; several run concurrently."""
        with ThreadPoolExecutor(NUM_READERS) as pool:
            return list(pool.map(work, range(len(self.groups))))

    def leaf_columns(self, shard: int) -> list[str]:
        """Return the Parquet paths of a shard's leaf columns, e.g. `input_ids.list.element`."""
        schema = self._metadata(shard).schema
        return [schema.column(leaf).path for leaf in range(len(schema))]

    def _partitions_of(self, shard: Shard, metadata: pq.FileMetaData, columns: Sequence[str]) -> list[pa.Field]:
        """Return the columns that only the shard's path holds."""
        names = [name for name in columns if name in partition_values(shard.path)]
        if not names:
            return []
        present = metadata.schema.to_arrow_schema().names
        types = {"int64": pa.int64(), "string": pa.string()}
        return [pa.field(name, types[self.manifest.columns[name]]) for name in names if name not in present]

    def changed_shards(self) -> dict[str, str]:
        """Return shards whose bytes differ from the indexed ones, with the difference; reads all shards."""
        shards = self.manifest.shards
        with ThreadPoolExecutor(NUM_CHECKERS) as pool:
            found = pool.map(self._what_changed, shards)
            return {shard.path: what for shard, what in zip(shards, found, strict=True) if what}

    def _what_changed(self, shard: Shard) -> str | None:
        if not self._store.exists(shard.path):
            return "is missing"
        digest = sha256_of_bytes(self._store.get(shard.path))
        if digest == shard.sha256:
            return None
        return f"has sha256 {digest[:12]}…, the manifest says {shard.sha256[:12]}…"

    def _fetch(self, shard: Shard, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        """Read byte ranges. A missing or resized shard raises `DamagedDataError`, a failing store `StoreError`."""
        cause = None
        try:
            parts = self._store.get_ranges(shard.path, starts, ends)
        except StoreError as error:
            sizes = {item.key: item.num_bytes for item in self._store.list(shard.path)}
            if sizes.get(shard.path) == shard.num_bytes:
                raise
            cause, seen = error, f"has {sizes[shard.path]} bytes" if shard.path in sizes else "is missing"
        else:
            if all(len(part) == end - start for part, start, end in zip(parts, starts, ends, strict=True)):
                return parts
            seen = f"ends before byte {max(ends)}"
        raise DamagedDataError(f"{shard.path} {seen}; it was indexed with {shard.num_bytes} bytes. {_HINT}") from cause

    def _parse_footer(self, shard: int) -> pq.FileMetaData:
        return parse_footer(self._footer_column[shard].as_buffer().to_pybytes())


_HINT = "Restore it, index the dataset again, or set loader.on_damage=quarantine to continue without its rows."


def dataset_fingerprint(columns: Mapping[str, str], shards: Sequence[Shard], groups: RowGroups) -> str:
    """Digest the shards' bytes, the rows of their groups, and the column types."""
    boundaries = np.searchsorted(groups.shard_index, np.arange(1, len(shards)))
    num_rows = (rows.tolist() for rows in np.split(groups.num_rows, boundaries))
    listed = [[shard.path, shard.sha256, rows] for shard, rows in zip(shards, num_rows, strict=True)]
    return sha256_of_json({"columns": dict(columns), "shards": listed})


def source_url(folder: Path, manifest: DatasetManifest) -> str:
    """Return the location of the shards, also after they were moved together with their manifest."""
    if "://" in manifest.source_url:
        return manifest.source_url
    candidate = folder.resolve() / manifest.relative_source
    if manifest.relative_source and (candidate / manifest.shards[0].path).exists():
        return str(candidate.resolve())
    return str((folder / manifest.source_url).resolve())
