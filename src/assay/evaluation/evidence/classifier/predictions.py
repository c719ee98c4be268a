"""The file of per-row scores that every comparison stands on, and the record of what was found in it.

    run_dir/evaluations/00000400-validation/
        predictions.parquet    row_id, label, probability, and the metadata columns; sorted by row_id
        evaluation.json        ClassifierEvaluation, which names the file by its digest

Sorted rows make the file a function of the model and the split, whatever the number of ranks that scored it.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DamagedDataError, DataError
from assay.evaluation.evidence.classifier.rows import ScoredRows, scored_rows
from assay.records.evaluation import ClassifierEvaluation

PREDICTIONS_FILE = "predictions.parquet"
EVALUATION_FILE = "evaluation.json"
SCORE_COLUMNS = ("row_id", "label", "probability")
_WANTED_TYPES = {"row_id": pa.uint64(), "label": pa.int8(), "probability": pa.float64()}


def evaluation_folder(run_dir: Path, *, step: int, split: str) -> Path:
    """Where the evaluation of one step on one split lies."""
    return run_dir / "evaluations" / f"{step:08d}-{split}"


def read_predictions(path: Path, *, sha256: str | None = None) -> pa.Table:
    """Read and check a file of predictions; rows sorted by id.

    Raises `DamagedDataError` if the bytes are not those that `sha256` names, `DataError` for a file that is
    absent, unreadable or without the three score columns.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file. The run has not been evaluated; run its evaluation first.")
    if sha256 is not None and (seen := sha256_of_bytes(path.read_bytes())) != sha256:
        raise DamagedDataError(
            f"{path}: has digest {seen[:12]}…, its evaluation says {sha256[:12]}…. "
            "The file changed after it was written; evaluate the run again."
        )
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: not readable as Parquet ({error}). Evaluate the run again.") from error
    if absent := [name for name in SCORE_COLUMNS if name not in table.column_names]:
        raise DataError(f"{path}: no column {', '.join(absent)}; it has {', '.join(table.column_names)}.")
    table = _with_score_types(table, path).sort_by("row_id")
    _refuse_repeats(table["row_id"].to_numpy(), path)
    return table


def scores_of(table: pa.Table, *, source: str) -> ScoredRows:
    """The checked labels and probabilities of a table of predictions."""
    return scored_rows(table["label"].to_numpy(), table["probability"].to_numpy(), source=source)


def save_evaluation(folder: Path, evaluation: ClassifierEvaluation) -> None:
    """Write the record beside its predictions."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / EVALUATION_FILE).write_text(evaluation.to_json() + "\n", encoding="utf-8")


def load_evaluation(folder: Path) -> ClassifierEvaluation:
    """Read the record; `DataError` if the folder holds none."""
    path = folder / EVALUATION_FILE
    if not path.exists():
        raise DataError(f"{path}: no such file. The run has not been evaluated; run its evaluation first.")
    return ClassifierEvaluation.from_json(path.read_bytes(), source=path)


def _with_score_types(table: pa.Table, path: Path) -> pa.Table:
    for name, wanted in _WANTED_TYPES.items():
        column = table[name]
        if column.null_count:
            raise DataError(f"{path}: column {name} has {column.null_count} nulls; each row needs a value.")
        try:
            cast = column.cast(wanted)
        except pa.ArrowInvalid as error:
            raise DataError(f"{path}: column {name} is {column.type}, expected {wanted} ({error}).") from error
        table = table.set_column(table.column_names.index(name), name, cast)
    return table


def _refuse_repeats(sorted_ids: npt.NDArray[np.uint64], path: Path) -> None:
    repeats = sorted_ids[1:][sorted_ids[1:] == sorted_ids[:-1]]
    if repeats.size:
        raise DataError(
            f"{path}: {repeats.size} rows are listed more than once, the first is row {repeats[0]}. "
            "Each row of a split must be scored once."
        )
