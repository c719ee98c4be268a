"""Read, check and write the predictions of an evaluation, and its record.

    run_dir/evaluations/00000400-validation/
        predictions.parquet    row_id, predictions, metadata columns and the split's clusters; sorted by row_id
        evaluation.json        an `Evaluation`, which holds the digest of the file

Rows are sorted, so the file depends on the model and the split, and not on the number of ranks that scored it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DamagedDataError, DataError
from assay.base.names import checked_name
from assay.base.shapes import UInt64
from assay.base.units import number_of
from assay.data.dataset.split import key_hashes
from assay.records.evaluation import AnyEvaluation, ClassifierEvaluation, evaluation_from_json
from assay.statistics.interval import Clusters
from assay.store.objects import open_store

PREDICTIONS_FILE = "predictions.parquet"
EVALUATION_FILE = "evaluation.json"
ROW_ID = "row_id"
BINARY_COLUMNS = {"label": pa.int8(), "probability": pa.float64()}
"""Columns of the predictions of a binary classifier."""
LABEL = "label"
CLUSTER = "split_cluster"
"""Column with the hash of each row's split key; missing if rows were split without a key."""
PREDICTED = ("predicted", "prediction")
"""Columns with the predicted class or number, which are neither scores nor metadata."""


def evaluation_folder(run_dir: Path, *, step: int, split: str) -> Path:
    """Return the folder of the evaluation of one step on one split."""
    name = checked_name(f"{step:08d}-{split}", of="the split that was evaluated")
    return run_dir / "evaluations" / name


def predictions_of(run_dir: Path, evaluation: AnyEvaluation) -> Any:
    """Return the table of predictions behind an evaluation. Raises what `read_predictions` raises."""
    folder = evaluation_folder(run_dir, step=evaluation.step, split=evaluation.split)
    if not (path := folder / PREDICTIONS_FILE).exists():
        raise DataError(_gone(run_dir, path, evaluation))
    columns = (
        BINARY_COLUMNS
        if isinstance(evaluation, ClassifierEvaluation)
        else {measured.metric.name: pa.float64() for measured in evaluation.overall.measured}
    )
    return read_predictions(path, columns, sha256=evaluation.predictions_sha256)


def _gone(run_dir: Path, path: Path, evaluation: AnyEvaluation) -> str:
    on_record = f"'assay runs show {evaluation.run_id}' says what is on record."
    if not run_dir.is_dir():
        return (
            f"{run_dir}: no such folder, though run '{evaluation.run_id}' was evaluated in it: it was moved, "
            f"deleted or is not mounted. Name the folder of runs as it is now in ASSAY_HOME; {on_record}"
        )
    return (
        f"{path}: no such file, though run '{evaluation.run_id}' was evaluated by it: somebody moved or "
        f"deleted it. Restore it; {on_record}"
    )


def read_predictions(
    path: Path, columns: Mapping[str, pa.DataType] = BINARY_COLUMNS, *, sha256: str | None = None
) -> pa.Table:
    """Read and check a file of predictions; rows are sorted by id.

    Raises `DamagedDataError` if the bytes do not have digest `sha256`, and `DataError` if the file is missing,
    unreadable or lacks a column.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file. The run has not been evaluated; run its evaluation first.")
    if sha256 is not None and (seen := sha256_of_bytes(path.read_bytes())) != sha256:
        raise DamagedDataError(
            f"{path}: has digest {seen[:12]}…, its evaluation says {sha256[:12]}…. "
            "The file changed after it was written; evaluate the run again."
        )
    try:
        table = pq.ParquetFile(path).read()
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: not readable as Parquet ({error}). Evaluate the run again.") from error
    column_types = {ROW_ID: pa.uint64(), **columns}
    if absent := [name for name in column_types if name not in table.column_names]:
        raise DataError(f"{path}: no column {', '.join(absent)}; it has {', '.join(table.column_names)}.")
    table = _with_types(table, column_types, path).sort_by(ROW_ID)
    _check_unique(table[ROW_ID].to_numpy(), path)
    return table


def with_clusters(table: pa.Table, key: str | None, *, keep_key: bool) -> pa.Table:
    """Add the clusters of rows to predictions; the key column stays if `keep_key` is set."""
    if key is None or key not in table.column_names:
        return table
    found = table.append_column(CLUSTER, pa.array(key_hashes(table[key]), pa.uint64()))
    return found if keep_key else found.drop_columns(key)


def clusters_of(table: Any) -> Clusters | None:
    """Return the cluster of each row of a table of predictions; None if each row is its own."""
    if CLUSTER not in table.column_names:
        return None
    keys, clusters = np.unique(table[CLUSTER].to_numpy(), return_inverse=True)
    return None if len(keys) == len(clusters) else clusters.astype(np.int64)


def save_evaluation(folder: Path, evaluation: AnyEvaluation) -> None:
    """Write the record next to its predictions."""
    open_store(str(folder)).put(EVALUATION_FILE, (evaluation.to_json() + "\n").encode())


def load_evaluation(folder: Path) -> AnyEvaluation:
    """Read the record of an evaluation; raise `DataError` if the folder holds none."""
    path = folder / EVALUATION_FILE
    if not path.exists():
        raise DataError(f"{path}: no such file. The run has not been evaluated; run its evaluation first.")
    return evaluation_from_json(path.read_bytes(), source=path)


def have_same_rows(baseline: Any, candidate: Any) -> bool:
    """Return whether two tables of predictions have the same row ids."""
    return np.array_equal(baseline[ROW_ID].to_numpy(), candidate[ROW_ID].to_numpy())


def require_same_rows(baseline: Any, candidate: Any, names: str) -> None:
    """Raise `DataError` if two tables of predictions do not have the same rows."""
    if not have_same_rows(baseline, candidate):
        before, after = baseline[ROW_ID].to_numpy(), candidate[ROW_ID].to_numpy()
        shared = np.intersect1d(before, after).size
        raise DataError(
            f"{names} were not evaluated on the same rows: {before.size - shared:,} rows only in the first, "
            f"{after.size - shared:,} only in the second, {shared:,} in both. "
            "Evaluate both on one split of one dataset."
        )


def require_same_labels(baseline: Any, candidate: Any, names: str) -> None:
    """Raise `DataError` if two tables of the same rows have different labels."""
    if LABEL not in baseline.column_names or LABEL not in candidate.column_names:
        return
    before, after = (np.asarray(table[LABEL].to_numpy()) for table in (baseline, candidate))
    if num_relabelled := int(np.count_nonzero(before != after)):
        raise DataError(
            f"{names}: {num_relabelled:,} of {len(baseline):,} rows have different labels in the two files. "
            "The labels changed between the two evaluations; evaluate both again."
        )


def _with_types(table: pa.Table, column_types: Mapping[str, pa.DataType], path: Path) -> pa.Table:
    for name, type_ in column_types.items():
        column = table[name]
        if column.null_count:
            raise DataError(f"{path}: column {name} has {column.null_count} nulls; each row needs a value.")
        try:
            cast = column.cast(type_)
        except pa.ArrowInvalid as error:
            raise DataError(f"{path}: column {name} is {column.type}, expected {type_} ({error}).") from error
        table = table.set_column(table.column_names.index(name), name, cast)
    return table


def _check_unique(sorted_ids: UInt64[np.ndarray, "row"], path: Path) -> None:
    duplicates = sorted_ids[1:][sorted_ids[1:] == sorted_ids[:-1]]
    if duplicates.size:
        raise DataError(
            f"{path}: lists {number_of(duplicates.size, 'row')} more than once, the first is row "
            f"{duplicates[0]}. Each row of a split must be scored once."
        )
