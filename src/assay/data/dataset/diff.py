"""Compares two datasets by their manifests; optionally by row, which reads all tokens and labels.

The digests of column chunks show which column of which row group changed, so a label corrected in one shard is
reported as exactly that.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from assay.data.dataset.columns import LABEL, column_of
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.row_digests import token_digests
from assay.records.dataset import ColumnProfile, DatasetManifest, LengthProfile, Shard
from assay.records.dataset_diff import ChangedShard, DatasetDiff, RowDiff, Shift


def diff_datasets(before: Dataset, after: Dataset, *, by_row: bool = False) -> DatasetDiff:
    """Compare `before` with `after`; `by_row` reads the tokens and labels of both."""
    old, new = before.manifest, after.manifest
    old_shards = {shard.path: shard for shard in old.shards}
    new_shards = {shard.path: shard for shard in new.shards}
    renamed = _renamed(old_shards, new_shards)
    common_columns = set(old.columns) & set(new.columns)
    return DatasetDiff(
        before=old.fingerprint,
        after=new.fingerprint,
        is_equal=old.fingerprint == new.fingerprint,
        rows_before=old.num_rows,
        rows_after=new.num_rows,
        tokens_before=old.num_tokens,
        tokens_after=new.num_tokens,
        shards_added=tuple(sorted(new_shards.keys() - old_shards.keys() - {path for _, path in renamed})),
        shards_removed=tuple(sorted(old_shards.keys() - new_shards.keys() - {path for path, _ in renamed})),
        shards_renamed=tuple(renamed),
        shards_changed=tuple(
            _changed_shard(before, after, path)
            for path in sorted(old_shards.keys() & new_shards.keys())
            if old_shards[path].sha256 != new_shards[path].sha256
        ),
        columns_added=tuple(name for name in new.columns if name not in common_columns),
        columns_removed=tuple(name for name in old.columns if name not in common_columns),
        columns_retyped=tuple(
            (name, old.columns[name], new.columns[name])
            for name in new.columns
            if name in common_columns and old.columns[name] != new.columns[name]
        ),
        shifts=tuple(sorted(_shifts(old, new), key=_relative_size, reverse=True)),
        length_distance=_length_distance(old.lengths, new.lengths),
        rows=_row_diff(before, after) if by_row else None,
    )


def _row_diff(before: Dataset, after: Dataset) -> RowDiff:
    old, new = token_digests(before), token_digests(after)
    texts, text_index = np.unique(np.concatenate([old, new]), return_inverse=True)
    old_index, new_index = text_index[: len(old)], text_index[len(old) :]
    old_count, new_count = (np.bincount(index, minlength=len(texts)) for index in (old_index, new_index))
    relabelled = 0
    if all(LABEL in dataset.manifest.columns for dataset in (before, after)):
        labels, label_index = np.unique(np.concatenate([_labels(before), _labels(after)]), return_inverse=True)
        pairs, pair_index = np.unique(text_index * len(labels) + label_index, return_inverse=True)
        old_pairs, new_pairs = (np.bincount(index, minlength=len(pairs)) for index in np.split(pair_index, [len(old)]))
        # Among copies of a text with several labels, only the count of each label is comparable.
        has_as_many = (old_count == new_count)[pairs // len(labels)]
        relabelled = int(np.abs(old_pairs - new_pairs)[has_as_many].sum()) // 2
    return RowDiff(
        num_added=int(np.maximum(new_count - old_count, 0).sum()),
        num_removed=int(np.maximum(old_count - new_count, 0).sum()),
        num_relabelled=relabelled,
    )


def _labels(dataset: Dataset) -> np.ndarray:
    """Return labels as text, so that true equals 1, and the storage type of names does not matter."""
    tables = dataset.map_groups(lambda group: dataset.read_row_group(group, [LABEL]))
    columns = [table[LABEL] for table in tables]
    is_truth = bool(columns) and pa.types.is_boolean(columns[0].type)
    plain = [column.cast(pa.int64()) if is_truth else column for column in columns]
    return np.concatenate([column.cast(pa.string()).to_numpy() for column in plain]).astype(str)


def _renamed(old: dict[str, Shard], new: dict[str, Shard]) -> list[tuple[str, str]]:
    gone = {shard.sha256: path for path, shard in sorted(old.items()) if path not in new}
    pairs = []
    for path, shard in sorted(new.items()):
        if path not in old and shard.sha256 in gone:
            pairs.append((gone.pop(shard.sha256), path))
    return pairs


def _changed_shard(before: Dataset, after: Dataset, path: str) -> ChangedShard:
    (old, old_groups, old_leaves), (new, new_groups, new_leaves) = (
        _groups_of(dataset, path) for dataset in (before, after)
    )
    old_rows, new_rows = before.groups.num_rows[old_groups], after.groups.num_rows[new_groups]
    columns: set[str] = set()
    num_row_groups = len(new_groups)
    if np.array_equal(old_rows, new_rows):
        is_other = np.zeros(len(new_groups), bool)
        for leaf in sorted({*old_leaves, *new_leaves}):
            if leaf in old_leaves and leaf in new_leaves:
                old_digests = before.groups.chunk_digest[old_groups, old_leaves.index(leaf)]
                differs = old_digests != after.groups.chunk_digest[new_groups, new_leaves.index(leaf)]
            else:
                differs = np.ones(len(new_groups), bool)
            if differs.any():
                columns.add(column_of(leaf, [*before.manifest.columns, *after.manifest.columns]))
            is_other |= differs
        num_row_groups = int(is_other.sum())
    return ChangedShard(
        path=path,
        rows_before=old.num_rows,
        rows_after=new.num_rows,
        columns=tuple(sorted(columns)),
        num_row_groups=num_row_groups,
    )


def _groups_of(dataset: Dataset, path: str) -> tuple[Shard, np.ndarray, list[str]]:
    index = next(n for n, shard in enumerate(dataset.manifest.shards) if shard.path == path)
    groups = np.flatnonzero(dataset.groups.shard_index == index)
    return dataset.manifest.shards[index], groups, dataset.leaf_columns(index)


def _shifts(old: DatasetManifest, new: DatasetManifest) -> Iterator[Shift]:
    for label in sorted({*old.label_counts, *new.label_counts}):
        before, after = (m.label_counts.get(label, 0) / max(1, m.num_rows) for m in (old, new))
        yield from _shift(f"label {label}", before, after, is_share=True)
    for figure in ("mean", "p50", "p95", "p99", "max"):
        before, after = getattr(old.lengths, figure), getattr(new.lengths, figure)
        yield from _shift(f"tokens a row: {figure}", before, after, is_share=False)
    old_columns = {column.name: column for column in old.column_profiles}
    for column in new.column_profiles:
        if column.name in old_columns and column.name != LABEL:
            yield from _column_shifts(old_columns[column.name], column, old.num_rows, new.num_rows)


def _column_shifts(old: ColumnProfile, new: ColumnProfile, old_rows: int, new_rows: int) -> Iterator[Shift]:
    yield from _shift(f"{new.name}: missing", old.missing_rate, new.missing_rate, is_share=True)
    if old.mean is not None and new.mean is not None:
        yield from _shift(f"{new.name}: mean", old.mean, new.mean, is_share=False)
    old_values, new_values = dict(old.top_values), dict(new.top_values)
    # A profile lists 20 values. If a list is full, a value absent from it may be just below the cut.
    is_whole = len(old_values) < 20 and len(new_values) < 20
    names = old_values.keys() | new_values.keys() if is_whole else old_values.keys() & new_values.keys()
    for name in sorted(names):
        before, after = old_values.get(name, 0) / max(1, old_rows), new_values.get(name, 0) / max(1, new_rows)
        yield from _shift(f"{new.name}={name}", before, after, is_share=True)


def _shift(name: str, before: float, after: float, *, is_share: bool) -> Iterator[Shift]:
    if before != after:
        yield Shift(name=name, before=before, after=after, is_share=is_share)


def _relative_size(shift: Shift) -> float:
    """Sort key of shifts: percentage points for shares, relative change for other figures."""
    if shift.is_share:
        return abs(shift.after - shift.before)
    return abs(shift.after - shift.before) / max(abs(shift.before), abs(shift.after))


def _length_distance(old: LengthProfile, new: LengthProfile) -> float:
    """Return the total variation distance between two length histograms, on the union of their edges."""
    edges = np.union1d(old.histogram_edges, new.histogram_edges)
    shares = [np.diff(np.interp(edges, *_cumulative(profile))) for profile in (old, new)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def _cumulative(profile: LengthProfile) -> tuple[np.ndarray, np.ndarray]:
    rows = np.asarray(profile.histogram_rows, float)
    return np.asarray(profile.histogram_edges), np.concatenate([[0.0], np.cumsum(rows) / max(1.0, rows.sum())])
