"""Splits a dataset into training and validation rows: by time, by the hash of a key, or by a column.

Rows that share a key (a conversation, a document, a file) are on the same side. Rows are never split at random,
so that related rows do not leak into validation.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pydantic import Field

from assay.base.config import FrozenConfig
from assay.base.digest import sha256_of_json, sha256_of_parts
from assay.base.errors import ConfigError, DataError, StoreError
from assay.base.seeds import Keys, derive_key, mix64
from assay.base.units import number_of
from assay.data.dataset.columns import KEY, TOKENS
from assay.data.dataset.dataset import NUM_READERS, Dataset
from assay.data.dataset.held_out.copy import HeldOutCopy
from assay.data.dataset.row_digests import digests_of, token_digests
from assay.data.dataset.row_groups import RowGroups
from assay.store.objects import open_store

Part = Literal["train", "validation"]
_UTC_MOMENT = pa.timestamp("us")


class HashSplit(FrozenConfig):
    """Holds out about `validation_fraction` of the keys, chosen by their hash."""

    also_called: ClassVar = {
        "fraction": "validation_fraction",
        "test_size": "validation_fraction",
        "val_fraction": "validation_fraction",
        "group_by": "column",
        "key": "column",
    }

    type: Literal["hash"] = "hash"

    column: str = "shard_id"
    """The key. All rows with one value are on one side; null is a value. `input_ids` keeps copies of a text
    together.
    """

    validation_fraction: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of the keys, approximately."""

    seed: int = 0

    drop_leaks: bool = False
    """Leave out validation rows with the tokens of a training row. Reads all rows once."""


class TimeSplit(FrozenConfig):
    """Holds out the rows from a point in time on."""

    type: Literal["time"]

    column: str = "created_at"

    validation_from: datetime
    """Time of the first validation row; UTC if it names no time zone."""

    drop_leaks: bool = False
    """Leave out validation rows with the tokens of a training row. Reads all rows once."""


class ColumnSplit(FrozenConfig):
    """Holds out the rows that a column marks."""

    also_called: ClassVar = {"value": "validation", "values": "validation", "key": "column"}

    type: Literal["column"]

    column: str = "split"

    validation: tuple[str, ...] = Field(default=("validation",), min_length=1)
    """Values that mark a held-out row, as text (`true` for a boolean). Rows without a value are trained on."""

    drop_leaks: bool = False
    """Leave out validation rows with the tokens of a training row. Reads all rows once."""


SplitConfig = Annotated[HashSplit | TimeSplit | ColumnSplit, Field(discriminator="type")]


Bits = npt.NDArray[np.uint8]
"""Eight rows a byte, first row in the highest bit."""


class SelectedRows(Sequence[npt.NDArray[np.bool_]]):
    """[row group][row]: whether the row is selected. A bit set, unpacked one group at a time: 42 million rows take 5 MB
    on every rank."""

    def __init__(self, bits: Bits, groups: RowGroups, *, others: bool = False) -> None:
        """If `others` is set, rows whose bit is 0 are selected."""
        self._bits, self._groups, self._others = bits, groups, others

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, group: int) -> npt.NDArray[np.bool_]:  # type: ignore[override]
        first, count = int(self._groups.first_row[group]), int(self._groups.num_rows[group])
        begin = first // 8
        part = np.unpackbits(self._bits[begin : (first + count + 7) // 8])[first - 8 * begin :][:count]
        return part == 0 if self._others else part.view(bool)

    def counts(self) -> npt.NDArray[np.int64]:
        return np.array([np.count_nonzero(self[group]) for group in range(len(self))], np.int64)


@dataclass(frozen=True)
class DatasetView:
    """The selected rows of a dataset, as a loader reads them."""

    dataset: Dataset
    fingerprint: str
    num_rows: npt.NDArray[np.int64]
    """Selected rows of each row group."""
    selection: SelectedRows
    copy: HeldOutCopy | None = None
    """A copy of the selected rows, read instead of the dataset if it exists."""

    @property
    def identities(self) -> Keys:
        return self.dataset.identities

    def row_ids(self, group: int) -> Keys:
        first = int(self.dataset.groups.first_row[group])
        return (np.flatnonzero(self.selection[group]) + first).astype(np.uint64)

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        if self.copy is not None:
            return self.copy.read(group, columns)
        table = self.dataset.read_row_group(group, columns)
        selected = self.selection[group]
        return table if selected.all() else table.filter(pa.array(selected))

    def sum_of(self, column: str) -> int:
        groups = np.flatnonzero(self.num_rows).tolist()
        with ThreadPoolExecutor(NUM_READERS) as pool:
            tables = pool.map(lambda group: self.read(group, [column]), groups)
            return sum(int(pc.sum(table[column].cast(pa.int64())).as_py()) for table in tables)

    def shard_of(self, group: int) -> str:
        return self.dataset.shard_path(group)


def split_view(dataset: Dataset, config: SplitConfig, part: Part) -> DatasetView:
    """Return the rows of one side. Reads the split column once and caches the result next to the manifest."""
    sides = config.model_copy(update={"drop_leaks": False})
    bits = _load_or_compute(dataset, sides, lambda: _held_out(dataset, sides))
    if part == "train":
        config = sides
    elif config.drop_leaks:
        held_out = np.unpackbits(bits, count=dataset.manifest.num_rows).astype(bool)
        bits = _load_or_compute(dataset, config, lambda: _without_leaks(dataset, held_out))
    selection = SelectedRows(bits, dataset.groups, others=part == "train")
    num_rows = selection.counts()
    return DatasetView(
        dataset=dataset,
        fingerprint=sha256_of_json([*_named(dataset, config), part]),
        num_rows=num_rows,
        selection=selection,
        copy=None if part == "train" else HeldOutCopy.find(dataset, split_sha256(dataset, config), num_rows),
    )


def split_sha256(dataset: Dataset, config: SplitConfig) -> str:
    """Digest of a dataset and its split config."""
    return sha256_of_json(_named(dataset, config))


def whole_view(dataset: Dataset) -> DatasetView:
    """Return a view of all rows."""
    nobody = np.zeros(-(-dataset.manifest.num_rows // 8), np.uint8)
    selection = SelectedRows(nobody, dataset.groups, others=True)
    return DatasetView(dataset, dataset.fingerprint, dataset.groups.num_rows, selection)


def _named(dataset: Dataset, config: SplitConfig) -> list[Any]:
    return [dataset.fingerprint, config.model_dump(mode="json")]


def _load_or_compute(dataset: Dataset, config: SplitConfig, decide: Callable[[], npt.NDArray[np.bool_]]) -> Bits:
    """Return, for each row, whether it is for validation; from the cache if possible."""
    key = split_sha256(dataset, config)
    cache = dataset.folder / "splits" / f"{key[:16]}.bits"
    if (stored := _load(cache, key, dataset.manifest.num_rows)) is not None:
        return stored
    decided: Bits = np.packbits(decide())
    _store(cache, key, decided)
    return decided


def _without_leaks(dataset: Dataset, held_out: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the held-out rows whose tokens no training row has."""
    digests = token_digests(dataset)
    clean: npt.NDArray[np.bool_] = held_out & ~np.isin(digests, digests[~held_out])
    if not clean.any():
        raise ConfigError(
            "data.split.drop_leaks leaves no validation rows: each of the "
            f"{np.count_nonzero(held_out):,} held-out rows has the tokens of a training row. Hold out by "
            "`column: input_ids`, which keeps copies of a text together."
        )
    return clean


def _held_out(dataset: Dataset, config: SplitConfig) -> npt.NDArray[np.bool_]:
    if config.column not in dataset.manifest.columns:
        build = dataset.manifest.build
        is_group = build is not None and build.group == config.column
        hint = f" '{KEY}' holds what '{config.column}' held." if is_group else ""
        raise ConfigError(
            f"data.split.column '{config.column}' is not in dataset '{dataset.manifest.name}', which has: "
            f"{', '.join(dataset.manifest.columns)}.{hint}"
        )

    def decide(group: int) -> npt.NDArray[np.bool_]:
        column = dataset.read_row_group(group, [config.column])[config.column]
        return _decide(column, config, where=f"{dataset.shard_path(group)}: column '{config.column}'")

    held_out = np.concatenate(dataset.map_groups(decide))
    if held_out.all() or not held_out.any():
        others = {"time": "validation_from", "hash": "column, fraction or seed", "column": "column or values"}
        raise ConfigError(
            f"data.split puts {'all' if held_out.all() else 'none'} of the {len(held_out):,} rows into "
            f"validation. Choose another {others[config.type]}; 'assay data show' prints what the columns hold."
        )
    return held_out


def _decide(column: pa.ChunkedArray, config: SplitConfig, *, where: str) -> npt.NDArray[np.bool_]:
    try:
        if config.type == "hash":
            return _by_hash(column, config)
        return _by_time(column, config, where) if config.type == "time" else _by_value(column, config)
    except pa.ArrowException as error:
        expected = "times, dates or ISO 8601 text" if config.type == "time" else "one value a row"
        raise DataError(
            f"{where} has type {column.type}, which cannot split rows: {error}. Expected {expected}; choose "
            "another data.split.column."
        ) from error


def _by_hash(column: pa.ChunkedArray, config: HashSplit) -> npt.NDArray[np.bool_]:
    return _is_held_out(digests_of(column) if config.column == TOKENS else key_hashes(column), config)


def key_hashes(column: pa.ChunkedArray) -> Keys:
    """Hash each row's value as text; null has a hash of its own."""
    encoded = column.combine_chunks().cast(pa.string()).dictionary_encode()
    names = [*encoded.dictionary.to_pylist(), None]
    hashes = np.array([xxhash.xxh3_64_intdigest(repr(name).encode()) for name in names], np.uint64)
    indices = encoded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
    found: Keys = hashes[indices]
    return found


def key_column(config: SplitConfig) -> str | None:
    """Return the metadata column by which rows were kept together; None if rows were split individually."""
    return config.column if config.type == "hash" and config.column != TOKENS else None


def _is_held_out(hashes: Keys, config: HashSplit) -> npt.NDArray[np.bool_]:
    mixed = mix64(hashes ^ np.uint64(derive_key(config.seed, "split")))
    held_out: npt.NDArray[np.bool_] = mixed < np.uint64(int(config.validation_fraction * 2**64))
    return held_out


def _by_value(column: pa.ChunkedArray, config: ColumnSplit) -> npt.NDArray[np.bool_]:
    values = column.combine_chunks().cast(pa.string())
    held_out: npt.NDArray[np.bool_] = pc.is_in(values, pa.array(config.validation, pa.string())).to_numpy(
        zero_copy_only=False
    )
    return held_out


def _by_time(column: pa.ChunkedArray, config: TimeSplit, where: str) -> npt.NDArray[np.bool_]:
    if column.null_count:
        raise DataError(
            f"{where} is null in {number_of(column.null_count, 'row')} of a row group, and a row without a "
            "time belongs to neither side. Fill in the column, or split by hash of another one."
        )
    moment = config.validation_from
    utc = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    boundary = pa.scalar(utc.replace(tzinfo=None), _UTC_MOMENT)
    held_out: npt.NDArray[np.bool_] = pc.greater_equal(_utc_moments(column), boundary).to_numpy()
    return held_out


def _utc_moments(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert times to UTC; times without a zone are UTC. Numbers are rejected, because their unit is unknown."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            column = column.cast(pa.timestamp("us", "UTC"))
        except pa.ArrowInvalid:
            return column.cast(_UTC_MOMENT)
    if pa.types.is_integer(column.type):
        raise pa.ArrowInvalid("a number has no unit of time")
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = _in_microseconds(column, pa.timestamp("us", "UTC"))
    return _in_microseconds(column, _UTC_MOMENT)


def _in_microseconds(column: pa.ChunkedArray, arrow_type: pa.DataType) -> pa.ChunkedArray:
    """Truncate nanoseconds; overflow is an error, because it would wrap around to another year."""
    return pc.cast(column, options=pc.CastOptions(arrow_type, allow_time_truncate=True))


def _load(path: Path, key: str, num_rows: int) -> Bits | None:
    """Load a cached split; None if it is missing, truncated, changed, or of another split."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    bits = stored[:-_DIGEST_BYTES]
    if stored[-_DIGEST_BYTES:] != _split_digest(key, bits) or len(bits) != -(-num_rows // 8):
        return None
    return np.frombuffer(bits, np.uint8)


def _store(path: Path, key: str, held_out: Bits) -> None:
    """Cache a split. If the manifest's folder is read-only, it is computed again each time."""
    bits = held_out.tobytes()
    with suppress(StoreError):
        open_store(str(path.parent)).put(path.name, bits + _split_digest(key, bits))


_DIGEST_BYTES = 32


def _split_digest(key: str, bits: bytes) -> bytes:
    return bytes.fromhex(sha256_of_parts([key.encode(), bits]))
