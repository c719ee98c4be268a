"""A dataset that is ready to be read: its manifest, its row groups, and verified access to their rows."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DamagedDataError, DataError
from assay.data.dataset.row_groups import RowGroups, read_row_groups, row_group_identities
from assay.data.dataset.shard_file import SparseFile, parse_footer
from assay.records.dataset import DatasetManifest
from assay.store.objects import open_store

MANIFEST_FILE = "manifest.json"
ROW_GROUPS_FILE = "row_groups.parquet"
FOOTERS_FILE = "footers.arrow"
MAX_OPEN_SHARDS = 256


class Dataset:
    """Opened from a manifest's folder; the shards are read in place."""

    def __init__(self, folder: Path, manifest: DatasetManifest, groups: RowGroups) -> None:
        self.folder = folder
        self.manifest = manifest
        self.groups = groups
        self.identities = row_group_identities([shard.path for shard in manifest.shards], groups)
        self._store = open_store(manifest.source_url)
        self._footers = pa.memory_map(str(folder / FOOTERS_FILE))
        self._footer_column = pa.ipc.open_file(self._footers).read_all()["footer"]
        self._metadata = lru_cache(maxsize=MAX_OPEN_SHARDS)(self._parse_footer)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read a manifest folder and check that its files belong together."""
        path = folder / MANIFEST_FILE
        if not path.is_file():
            raise DataError(
                f"{folder}: no dataset there (no {MANIFEST_FILE}). Make one with 'assay data index' or "
                "'assay data build'."
            )
        manifest = DatasetManifest.from_json(path.read_bytes(), source=path)
        table = folder / ROW_GROUPS_FILE
        if not table.is_file() or sha256_of_bytes(table.read_bytes()) != manifest.row_groups_sha256:
            raise DataError(
                f"{table}: not the table that {MANIFEST_FILE} was written with. Index the dataset anew."
            )
        return cls(folder, manifest, read_row_groups(table))

    @property
    def fingerprint(self) -> str:
        """Names the dataset, bytes and all."""
        return self.manifest.fingerprint

    def shard_path(self, group: int) -> str:
        """The shard that holds a row group."""
        return self.manifest.shards[int(self.groups.shard_index[group])].path

    def read_row_group(self, group: int, columns: Sequence[str]) -> pa.Table:
        """All rows of a group, these columns only; each chunk's digest is checked before it is decoded."""
        groups = self.groups
        shard = self.manifest.shards[int(groups.shard_index[group])]
        metadata = self._metadata(int(groups.shard_index[group]))
        in_shard = int(groups.group_index[group])
        wanted = _leaf_columns(metadata, columns)
        starts = [int(groups.chunk_start[group, leaf]) for leaf in wanted]
        ends = [
            start + int(groups.chunk_bytes[group, leaf]) for start, leaf in zip(starts, wanted, strict=True)
        ]
        parts = self._store.get_ranges(shard.path, starts, ends)
        for leaf, part in zip(wanted, parts, strict=True):
            digest = xxhash.xxh3_64_intdigest(part)
            if digest != int(groups.chunk_digest[group, leaf]):
                name = metadata.schema.column(leaf).path
                raise DamagedDataError(
                    f"{shard.path}: row group {in_shard}, column '{name}' has digest {digest:016x}, the "
                    f"manifest says {int(groups.chunk_digest[group, leaf]):016x}. The file changed after it was indexed. "
                    "Restore it, index the dataset anew, or set loader.on_damage=quarantine to go on "
                    "without its rows."
                )
        file = pq.ParquetFile(
            pa.PythonFile(SparseFile(starts, parts, shard.num_bytes), mode="r"),
            metadata=metadata,
            pre_buffer=False,
        )
        return file.read_row_group(in_shard, columns=list(columns), use_threads=False)

    def changed_shards(self) -> dict[str, str]:
        """Shards whose bytes are not those that were indexed, with what is wrong; reads everything."""
        changed = {}
        for shard in self.manifest.shards:
            if not self._store.exists(shard.path):
                changed[shard.path] = "is missing"
                continue
            digest = sha256_of_bytes(self._store.get(shard.path))
            if digest != shard.sha256:
                changed[shard.path] = f"has sha256 {digest[:12]}…, the manifest says {shard.sha256[:12]}…"
        return changed

    def _parse_footer(self, shard: int) -> pq.FileMetaData:
        return parse_footer(self._footer_column[shard].as_buffer().to_pybytes())


def _leaf_columns(metadata: pq.FileMetaData, columns: Sequence[str]) -> list[int]:
    wanted = set(columns)
    return [
        leaf
        for leaf in range(metadata.num_columns)
        if metadata.schema.column(leaf).path.partition(".")[0] in wanted
    ]
