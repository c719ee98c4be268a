"""Indexes existing Parquet files: reads and checks every shard once, and writes a manifest.

    shards --(pool)--> ShardScan: digests, row groups, lengths, labels, columns --> manifest folder

The manifest is written last, so an interrupted index never leaves an incomplete dataset.
"""

import functools
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DataError
from assay.base.parsing.nesting import parse_json
from assay.base.shown_url import refuse_secrets
from assay.base.units import number_of
from assay.data.dataset.columns import (
    ITEM,
    LABEL,
    MARGIN,
    MASK,
    PROMPT_TOKENS,
    REFERENCE_LOGPROBS,
    REJECTED,
    SEQUENCES,
    SPANS,
    TOKENS,
    check_same_schema,
    check_schema,
    format_of,
    is_text,
    plain_schema,
)
from assay.data.dataset.dataset import FOOTERS_FILE, ROW_GROUPS_FILE, dataset_fingerprint
from assay.data.dataset.label_values import MAX_CLASSES
from assay.data.dataset.manifest_file import MANIFEST_FILE
from assay.data.dataset.partitions import partition_schema, partition_values, with_partitions
from assay.data.dataset.profile import MAX_LENGTH, ColumnCounts, added, is_profiled, length_profile, merged_columns
from assay.data.dataset.row_groups import RowGroups
from assay.data.dataset.shard_file import SparseFile, chunk_ranges, footer_of, is_encrypted, read_group
from assay.data.dataset.source_files import shard_paths
from assay.data.pools.pool import Pool, Progress, ThreadPool, no_progress, run_jobs
from assay.records.dataset import BoundaryTokens, BuildSummary, DatasetManifest, HeldOutOf, ReferenceScores, Shard
from assay.store.objects import ObjectStore, open_store

_NO_PARTITIONS = pa.schema([])
MOST_FIELDS = 1_000
"""Items with more distinct fields are not summarized."""
Lengths = npt.NDArray[np.int64]
Lists = tuple[Lengths, npt.NDArray[np.int64]]
"""Length of each row's list, and the concatenated values."""


class TokenizerInfo(NamedTuple):
    """Digests of the tokenizer's files next to the manifest, and the begin and end tokens of texts."""

    tokenizer_sha256: str | None = None
    tokenizer_config_sha256: str | None = None
    chat_template_sha256: str | None = None
    boundaries: BoundaryTokens | None = None

    @classmethod
    def of(cls, manifest: DatasetManifest) -> "TokenizerInfo":
        return cls(*(getattr(manifest, name) for name in cls._fields))


_NO_TOKENIZER_INFO = TokenizerInfo()


class Provenance(NamedTuple):
    """Where the rows come from, as stored in the manifest."""

    tokenizer_info: TokenizerInfo
    build: BuildSummary | None
    scored: ReferenceScores | None
    held_out_of: HeldOutOf | None


class GroupScan(NamedTuple):
    """Findings in one row group; the lists have one entry per column chunk."""

    num_rows: int
    num_tokens: int
    chunk_start: list[int]
    chunk_bytes: list[int]
    chunk_digest: list[int]


class ShardScan(NamedTuple):
    """Findings in one shard."""

    shard: Shard
    schema: pa.Schema
    footer: bytes
    groups: list[GroupScan]
    rows_of_length: npt.NDArray[np.int64]
    """Number of rows by length in tokens."""
    max_token_id: int
    label_counts: Counter[str]
    columns: dict[str, ColumnCounts]
    num_trained_tokens: int | None
    item_fields: Counter[str]
    """Field -> prompts whose item has it."""


def index_dataset(
    source_url: str,
    out: Path,
    *,
    name: str | None = None,
    needs_label: bool = True,
    workers: int = 2,
    tokenizer_info: TokenizerInfo = _NO_TOKENIZER_INFO,
    build: BuildSummary | None = None,
    scored: ReferenceScores | None = None,
    held_out_of: HeldOutOf | None = None,
    progress: Progress = no_progress,
    replacing: Callable[[], None] = lambda: None,
    pool: Pool | None = None,
) -> DatasetManifest:
    """Index all `*.parquet` files under a folder or object-store prefix; writes the manifest folder `out`.

    `replacing` is called before the manifest of another dataset in `out` is overwritten; it may raise to prevent that.
    `pool` reads the shards; the default is `workers` threads.
    """
    refuse_secrets(source_url, of="the shards")
    if "://" not in source_url:
        source_url = str(Path(source_url).resolve())
    store, paths = open_store(source_url), shard_paths(source_url)
    if not paths:
        raise DataError(f"{source_url}: no *.parquet file there. Check the path or the prefix.")
    scans: list[ShardScan] = []
    scan = functools.partial(scan_shard, needs_label=needs_label, partitions=partition_schema(paths))
    with nullcontext(pool) if pool is not None else ThreadPool(workers) as shard_pool:
        # A store cannot be pickled: a worker elsewhere opens its own.
        jobs = [(store if pool is None else source_url, path) for path in paths]
        for path, found in zip(paths, run_jobs(shard_pool, scan, jobs, progress), strict=True):
            scans.append(found)
            check_same_schema(found.schema, scans[0].schema, shard=path, first_shard=paths[0])
    provenance = Provenance(tokenizer_info, build, scored, held_out_of)
    return _write(scans, source_url, out, name or _name_of(source_url), provenance, replacing)


def scan_shard(
    source: ObjectStore | str, path: str, *, needs_label: bool, partitions: pa.Schema = _NO_PARTITIONS
) -> ShardScan:
    """Read and check one whole shard of a store, or of the store at a URL. Raises `DataError` for the first problem.

    `partitions` are the columns stored in shard paths; a column that is also in the file is read from the file.
    """
    store = open_store(source) if isinstance(source, str) else source
    data = memoryview(store.get(path))
    footer = footer_of(data)
    try:
        if is_encrypted(data):
            raise DataError(f"{path}: has encrypted columns. Write it again without encryption.")
        if footer is None:
            raise DataError(
                f"{path}: not a whole Parquet file ({len(data)} bytes, no footer at the end). It was cut short "
                "while it was written or copied, or it is something else. Write it again, or move it away."
            )
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)))
        schema, values = file.schema_arrow.remove_metadata(), partition_values(path)
        from_path = [field for field in partitions if field.name in values and field.name not in schema.names]
        check_schema(pa.schema([*schema, *from_path]), shard=path, needs_label=needs_label)
        return _scan(file, data, footer, path, from_path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be decoded: {error}. Write the file again.") from error


def _scan(file: pq.ParquetFile, data: memoryview, footer: bytes, path: str, from_path: Sequence[pa.Field]) -> ShardScan:
    metadata, in_file = file.metadata, file.schema_arrow.remove_metadata()
    if metadata.num_rows == 0:
        raise DataError(f"{path}: has no rows. Delete the file: an empty shard is a sign of a failed write.")
    schema = pa.schema([*in_file, *from_path])
    groups = []
    rows_of_length = np.zeros(0, np.int64)
    max_token_id, num_trained = 0, 0
    labels: Counter[str] = Counter()
    items: Counter[str] = Counter()
    format = format_of(schema)
    sequences = SEQUENCES if format == "pairs" else (TOKENS,)
    columns = {field.name: ColumnCounts() for field in plain_schema(schema) if is_profiled(field, format)}
    for group in range(metadata.num_row_groups):
        where = f"{path}: row group {group}"
        starts, sizes = chunk_ranges(metadata, group)
        parts = [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        table = _decoded(metadata, group, SparseFile(starts, parts, len(data)), in_file.names, where)
        num_rows = len(table)
        if from_path:
            table = with_partitions(table, path, from_path, num_rows)
        lengths = _lengths(table[TOKENS], where)
        of_sequences = [_lengths(table[name], where, name) for name in sequences]
        digests = [xxhash.xxh3_64_intdigest(part) for part in parts]
        groups.append(GroupScan(num_rows, int(np.sum(of_sequences)), starts, sizes, digests))
        if not num_rows:
            continue
        longest = np.max(of_sequences, axis=0)
        rows_of_length = added(rows_of_length, np.bincount(np.minimum(longest, MAX_LENGTH)))
        max_token_id = max(max_token_id, *(_max_token_id(table[name], where, name) for name in sequences))
        if format == "chat":
            num_trained += _checked_chat(table, lengths, where)
        if format == "pairs":
            num_trained += _checked_pairs(table, lengths, where)
        if format == "text":
            num_trained += int(lengths.sum())
        if format == "prompts":
            items.update(_item_fields(table[ITEM]))
        if MASK in schema.names:
            _check_mask(table[MASK], lengths, where)
        if LABEL in columns:
            labels.update(_labels(table[LABEL], where))
            if len(labels) > MAX_CLASSES:  # too many to be classes; the exact number does not matter
                labels = Counter(dict(islice(labels.items(), MAX_CLASSES + 1)))
        for name, counts in columns.items():
            counts.add(table[name])
    for counts in columns.values():
        counts.pack()
    shard = Shard(
        path=path,
        num_bytes=len(data),
        num_rows=metadata.num_rows,
        num_row_groups=metadata.num_row_groups,
        sha256=sha256_of_bytes(data),
    )
    trained = num_trained if format in ("text", "chat", "pairs") else None
    return ShardScan(shard, schema, footer, groups, rows_of_length, max_token_id, labels, columns, trained, items)


def _decoded(metadata: pq.FileMetaData, group: int, chunks: SparseFile, names: Sequence[str], where: str) -> pa.Table:
    """Decode and validate all columns of a row group; the error names the first unreadable column."""
    try:
        return _checked(metadata, group, chunks, names)
    except (pa.ArrowException, OSError):
        for name in names:
            try:
                _checked(metadata, group, chunks, [name])
            except (pa.ArrowException, OSError) as error:
                raise DataError(
                    f"{where}: column '{name}' cannot be decoded: {error}. Write the file again."
                ) from error
        raise


def _checked(metadata: pq.FileMetaData, group: int, chunks: SparseFile, names: Sequence[str]) -> pa.Table:
    table = read_group(metadata, group, chunks, names)
    table.validate(full=True)
    if len(table) != metadata.row_group(group).num_rows:
        raise pa.ArrowInvalid(f"{len(table)} values in {metadata.row_group(group).num_rows} rows")
    return table


def _lengths(column: pa.ChunkedArray, where: str, name: str = TOKENS) -> Lengths:
    if column.null_count:
        raise DataError(
            f"{where}: {number_of(column.null_count, 'row has', 'rows have')} no {name} (null). Drop what has "
            "none first."
        )
    lengths: npt.NDArray[np.int64] = pc.list_value_length(column).to_numpy().astype(np.int64)
    if len(lengths) and lengths.min() == 0:
        raise DataError(f"{where}: row {int(lengths.argmin())} has no tokens in {name}. Drop empty rows first.")
    return lengths


def _max_token_id(column: pa.ChunkedArray, where: str, name: str) -> int:
    tokens = pc.list_flatten(column)
    if tokens.null_count:
        count = number_of(tokens.null_count, f"token in {name} is", f"tokens in {name} are")
        raise DataError(f"{where}: {count} null. Drop or fix these rows.")
    limits = pc.min_max(tokens).as_py()
    if limits["min"] < 0:
        raise DataError(f"{where}: {name} holds {limits['min']}; tokens are 0 or more. Fix these rows first.")
    return int(limits["max"])


def _labels(column: pa.ChunkedArray, where: str) -> dict[str, int]:
    """Count the rows of each label; empty for floating-point labels."""
    if column.null_count:
        raise DataError(
            f"{where}: {number_of(column.null_count, 'row has', 'rows have')} no {LABEL} (null). Drop or "
            "label what has none first."
        )
    if pa.types.is_floating(column.type):
        values = column.to_numpy()
        if not (finite := np.isfinite(values)).all():
            raise DataError(
                f"{where}: {LABEL} is {values[~finite][0]} in {number_of(int((~finite).sum()), 'row')}; a "
                "number to learn is finite. Drop or fix what is none."
            )
        return {}
    try:
        names = column.cast(pa.string() if is_text(column.type) else pa.int64()).combine_chunks()
    except pa.ArrowInvalid as error:
        raise DataError(f"{where}: {LABEL} is no class and no number to learn: {error}. Fix it.") from error
    counts = pc.value_counts(names)
    return dict(zip(map(str, counts.field(0).to_pylist()), counts.field(1).to_pylist(), strict=True))


def _item_fields(column: pa.ChunkedArray) -> Iterator[str]:
    """Yield the names of non-null fields of each item; items that are not JSON objects have none."""
    for text in column.to_pylist():
        try:
            item = parse_json(text)
        except (TypeError, ValueError):
            continue
        if isinstance(item, dict):
            yield from (name for name, value in item.items() if value is not None)


def _all_labels(scans: Sequence[ShardScan]) -> dict[str, int]:
    """Count the rows of each label in all shards; empty if there are too many distinct ones for classes."""
    total: Counter[str] = Counter()
    for scan in scans:
        total.update(scan.label_counts)
    if len(total) <= MAX_CLASSES:
        return dict(total)
    if is_text(scans[0].schema.field(LABEL).type):
        some = ", ".join(repr(name[:40]) for name in list(total)[:3])
        raise DataError(
            f"{LABEL} has more than {MAX_CLASSES:,} different texts ({some}, …): too many to be classes. "
            "Write the label into "
            "this column, or index without one (--no-label) after renaming it."
        )
    return {}


def _checked_chat(table: pa.Table, lengths: Lengths, where: str) -> int:
    """Check that each row has at least one span and that spans are ordered; return the number of trained tokens."""
    counts, values = _lists_of(table[SPANS], where, SPANS)
    rows = np.repeat(np.arange(len(counts)), counts)
    begins_row = np.concatenate([[True], rows[1:] != rows[:-1]]) if len(rows) else np.zeros(0, bool)
    is_end = (np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)) % 2 == 1
    before = np.concatenate([[-1], values[:-1]])
    falls = np.where(begins_row, values < 0, np.where(is_end, values <= before, values < before))
    wrong = (counts == 0) | (counts % 2 == 1)
    wrong[rows[falls | (values > lengths[rows])]] = True
    if wrong.any():
        raise DataError(
            f"{where}: row {int(wrong.argmax())}: {SPANS} is not pairs [begin, end) of places among its "
            f"{lengths[int(wrong.argmax())]} tokens, one after the other. Fix the column, or build the "
            "dataset from the messages with 'assay data build --format chat'."
        )
    return int((values[1::2] - values[::2]).sum())


def _checked_pairs(table: pa.Table, lengths: Lengths, where: str) -> int:
    """Check that both sequences extend the prompt and differ after it; return the number of completion tokens."""
    if PROMPT_TOKENS not in table.column_names:
        raise DataError(
            f"{where}: column '{PROMPT_TOKENS}' is missing, and there is '{REJECTED}': how many tokens of both "
            "are the prompt. Add it, or build the dataset with 'assay data build --format pairs'."
        )
    rejected, prompts = _lengths(table[REJECTED], where, REJECTED), table[PROMPT_TOKENS]
    if prompts.null_count or not pa.types.is_integer(prompts.type):
        raise DataError(f"{where}: {PROMPT_TOKENS} is not a whole number in every row. Fix the column.")
    shared = prompts.to_numpy().astype(np.int64)
    _check_pairs(
        (shared < 0) | (shared >= np.minimum(lengths, rejected)),
        where,
        f"{PROMPT_TOKENS} is not less than the tokens of both sequences, so that a completion is empty",
    )
    one, other = (_lists_of(table[name], where, name) for name in SEQUENCES)
    _check_pairs(
        _differ(one, other, shared), where, f"{TOKENS} and {REJECTED} do not begin with the same {PROMPT_TOKENS}"
    )
    for name in (MARGIN, *REFERENCE_LOGPROBS):
        if name in table.column_names:
            _check_pairs(~_is_finite(table[name], where, name), where, f"{name} is no finite number")
    comparable = np.where(lengths == rejected, lengths, 0)
    _check_pairs((comparable > 0) & ~_differ(one, other, comparable), where, "what was chosen is what was rejected")
    return int((lengths + rejected - 2 * shared).sum())


def _is_finite(column: pa.ChunkedArray, where: str, name: str) -> npt.NDArray[np.bool_]:
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise DataError(f"{where}: {name} has type {column.type}, and is a number. Map its values, or rename it.")
    finite: npt.NDArray[np.bool_] = np.isfinite(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False))
    return finite


def _check_pairs(wrong: npt.NDArray[np.bool_], where: str, what: str) -> None:
    if wrong.any():
        raise DataError(
            f"{where}: row {int(wrong.argmax())}: {what}. Fix or drop the row, or build the dataset with "
            "'assay data build --format pairs'."
        )


def _differ(one: Lists, other: Lists, shared: Lengths) -> npt.NDArray[np.bool_]:
    """Return, for each row, whether its two lists differ within their first `shared` values."""
    offset = np.arange(int(shared.sum())) - np.repeat(np.cumsum(shared) - shared, shared)
    firsts = [values[np.repeat(np.cumsum(counts) - counts, shared) + offset] for counts, values in (one, other)]
    rows = np.repeat(np.arange(len(shared)), shared)
    return np.bincount(rows[firsts[0] != firsts[1]], minlength=len(shared)) > 0


def _lists_of(column: pa.ChunkedArray, where: str, name: str) -> Lists:
    values = pc.list_flatten(column)
    if column.null_count or values.null_count:
        raise DataError(f"{where}: {name} has nulls. Drop or fix these rows.")
    return (pc.list_value_length(column).to_numpy().astype(np.int64), values.to_numpy().astype(np.int64, copy=False))


def _check_mask(column: pa.ChunkedArray, lengths: npt.NDArray[np.int64], where: str) -> None:
    """Check that masks follow from the lengths, because they are never read."""
    in_mask = pc.fill_null(pc.list_value_length(column), -1).to_numpy()
    wrong = in_mask != lengths
    if not wrong.any():
        ones = pc.fill_null(pc.list_flatten(column).cast(pa.bool_()), False).to_numpy()
        wrong = np.add.reduceat(ones, np.cumsum(lengths) - lengths, dtype=np.int64) != lengths
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"{where}: row {row}: {MASK} is not one 1 for each of the {lengths[row]} tokens. Rows must hold "
            "no padding: cut input_ids where the mask ends."
        )


def _write(
    scans: Sequence[ShardScan],
    source_url: str,
    out: Path,
    name: str,
    provenance: Provenance,
    replacing: Callable[[], None],
) -> DatasetManifest:
    groups = _row_groups(scans)
    schema = scans[0].schema
    row_groups, footers = io.BytesIO(), io.BytesIO()
    pq.write_table(groups.table(), row_groups)
    footer_table = pa.table({"footer": pa.array([scan.footer for scan in scans], pa.large_binary())})
    with pa.ipc.new_file(footers, footer_table.schema) as writer:
        writer.write_table(footer_table)
    columns = merged_columns(scan.columns for scan in scans)
    types = {field.name: str(field.type) for field in schema}
    shards = tuple(scan.shard for scan in scans)
    manifest = DatasetManifest(
        name=name,
        source_url=(relative := _relative_to(out, source_url)),
        relative_source=_relative_source(out, source_url) if relative == source_url else "",
        fingerprint=dataset_fingerprint(types, shards, groups),
        row_groups_sha256=sha256_of_bytes(row_groups.getvalue()),
        footers_sha256=sha256_of_bytes(footers.getvalue()),
        columns=types,
        shards=shards,
        num_rows=int(groups.num_rows.sum()),
        num_row_groups=len(groups),
        num_tokens=int(groups.num_tokens.sum()),
        max_token_id=max(scan.max_token_id for scan in scans),
        lengths=length_profile(functools.reduce(added, (scan.rows_of_length for scan in scans))),
        label_counts=_all_labels(scans),
        column_profiles=tuple(columns[name].profile(name, schema.field(name).type) for name in columns),
        build=provenance.build,
        scored=provenance.scored,
        held_out_of=provenance.held_out_of,
        format=format_of(schema),
        num_trained_tokens=sum(scan.num_trained_tokens for scan in scans if scan.num_trained_tokens is not None)
        if scans[0].num_trained_tokens is not None
        else None,
        item_fields=_all_fields(scans),
        **provenance.tokenizer_info._asdict(),
    )
    folder = open_store(str(out))
    if _fingerprint_in(out) not in (None, manifest.fingerprint):
        replacing()
    files = {FOOTERS_FILE: footers.getvalue(), ROW_GROUPS_FILE: row_groups.getvalue()}
    changed = [name for name, data in files.items() if not folder.exists(name) or folder.get(name) != data]
    if changed:  # if the disk is full, an unchanged dataset keeps its manifest
        folder.delete(MANIFEST_FILE)
    for name in changed:
        folder.put(name, files[name])
    folder.put(MANIFEST_FILE, manifest.to_sealed_json().encode())
    return manifest


def _fingerprint_in(folder: Path) -> str | None:
    file = folder / MANIFEST_FILE
    with suppress(OSError, DataError):
        return DatasetManifest.from_json(file.read_bytes(), source=file).fingerprint
    return None


def _all_fields(scans: Sequence[ShardScan]) -> dict[str, int] | None:
    """Count the rows of each item field; None for other formats, or if there are too many fields."""
    total = sum((scan.item_fields for scan in scans), Counter[str]())
    is_known = format_of(scans[0].schema) == "prompts" and len(total) <= MOST_FIELDS
    return dict(total) if is_known else None


def _relative_to(out: Path, source_url: str) -> str:
    if "://" in source_url or not Path(source_url).is_relative_to(out.resolve()):
        return source_url
    return Path(source_url).relative_to(out.resolve()).as_posix()


def _relative_source(out: Path, source_url: str) -> str:
    folder = str(out.resolve())
    if "://" in source_url or os.path.commonpath((source_url, folder)) == os.sep:
        return ""
    return os.path.relpath(source_url, folder)


def _row_groups(scans: Sequence[ShardScan]) -> RowGroups:
    of_shard = [len(scan.groups) for scan in scans]
    num_rows, num_tokens, starts, sizes, digests = zip(*(group for scan in scans for group in scan.groups), strict=True)
    return RowGroups(
        shard_index=np.repeat(np.arange(len(scans)), of_shard),
        group_index=np.concatenate([np.arange(number) for number in of_shard]),
        first_row=np.concatenate([[0], np.cumsum(num_rows)[:-1]]),
        num_rows=np.array(num_rows, np.int64),
        num_tokens=np.array(num_tokens, np.int64),
        chunk_start=np.array(starts, np.int64),
        chunk_bytes=np.array(sizes, np.int64),
        chunk_digest=np.array(digests, np.uint64),
    )


def _name_of(source_url: str) -> str:
    return source_url.rstrip("/").rpartition("/")[2] or "dataset"
