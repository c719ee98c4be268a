"""From a file of predictions to its record, slice by slice."""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import DamagedDataError, DataError
from assay.statistics.evaluate import evaluate_predictions
from assay.statistics.predictions import (
    load_evaluation,
    read_predictions,
    save_evaluation,
)
from assay.statistics.slices import slices_of
from assay.training.trainer.method_config import BinaryPredictions

SUBJECT = {
    "run_id": "run-1",
    "step": 40,
    "weights_digest": "w" * 64,
    "dataset_fingerprint": "d" * 64,
    "split": "validation",
}


def write(path, num_rows=400, seed=0, **metadata):
    rng = np.random.default_rng(seed)
    labels = rng.random(num_rows) < 0.3
    probabilities = np.clip(rng.normal(0.3 + 0.2 * labels, 0.15), 0, 1)
    columns = {
        "row_id": pa.array(rng.permutation(num_rows), pa.uint64()),
        "label": pa.array(labels.astype(np.int8)),
        "probability": pa.array(probabilities),
    }
    pq.write_table(pa.table({**columns, **metadata}), path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_evaluation_survives_being_written_and_names_its_file(tmp_path):
    digest = write(tmp_path / "p.parquet", language=pa.array((["de", "en", None] * 134)[:400]))
    evaluation = evaluate_predictions(tmp_path / "p.parquet", BinaryPredictions(), **SUBJECT)
    save_evaluation(tmp_path, evaluation)
    assert load_evaluation(tmp_path) == evaluation
    assert evaluation.predictions_sha256 == digest
    assert [slice_part.value for slice_part in evaluation.slices] == ["de", "en", "(missing)"]


def test_small_and_one_sided_slices_are_listed_without_a_ranking(tmp_path):
    write(tmp_path / "p.parquet", kind=pa.array(["rare"] * 49 + ["common"] * 351))
    by_value = {
        slice_part.value: slice_part.metrics
        for slice_part in evaluate_predictions(tmp_path / "p.parquet", BinaryPredictions(), **SUBJECT).slices
    }
    assert by_value["rare"].num_rows == 49
    assert by_value["rare"].auc is None
    assert by_value["common"].auc is not None


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.lists(st.one_of(st.none(), st.integers(-5, 200)), min_size=1, max_size=120),
        st.lists(st.one_of(st.none(), st.floats(allow_infinity=False)), min_size=1, max_size=120),
        st.lists(st.one_of(st.none(), st.text(max_size=2)), min_size=1, max_size=120),
        st.lists(st.one_of(st.none(), st.booleans()), min_size=1, max_size=50),
    )
)
def test_the_slices_of_a_column_hold_each_row_once(values):
    slices = list(slices_of("column", pa.array(values)))
    assert (np.sum([slice_part.chosen for slice_part in slices], axis=0) == 1).all()


def test_numbers_are_cut_by_quartile_and_rare_text_is_put_together():
    numbers = [slice_part.value for slice_part in slices_of("length", pa.array(range(100)))]
    words = [slice_part.value for slice_part in slices_of("word", pa.array([f"w{k // 2:02d}" for k in range(50)]))]
    assert numbers == ["0 to 24", "25 to 49", "50 to 74", "75 to 99"]
    assert len(words) == 21
    assert words[-1] == "(5 other values)"


def test_a_row_scored_twice_is_refused(tmp_path):
    table = pa.table({"row_id": [7, 8, 7], "label": [0, 1, 1], "probability": [0.1, 0.2, 0.3]})
    pq.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(DataError, match="lists 1 row more than once, the first is row 7"):
        read_predictions(tmp_path / "p.parquet")


def test_a_changed_file_is_found_by_its_digest(tmp_path):
    digest = write(tmp_path / "p.parquet")
    write(tmp_path / "p.parquet", seed=1)
    with pytest.raises(DamagedDataError, match="changed after it was written"):
        read_predictions(tmp_path / "p.parquet", sha256=digest)


def test_wrong_files_are_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_predictions(tmp_path / "absent.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(DataError, match="not readable as Parquet"):
        read_predictions(tmp_path / "torn.parquet")
    pq.write_table(pa.table({"row_id": [1]}), tmp_path / "short.parquet")
    with pytest.raises(DataError, match="no column label, probability"):
        read_predictions(tmp_path / "short.parquet")
