"""What the classifier makes of rows, beside a version that takes them one by one."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import DataError
from assay.models.config import NewEncoderConfig
from assay.training.methods.classify.batch import classifier_tensors
from assay.training.methods.classify.config import NUMERIC_BUCKETS, ClassifyConfig
from assay.training.methods.classify.labels import labels_of

ENCODER = NewEncoderConfig(vocab_size=50)
CONFIG = ClassifyConfig(
    encoder=ENCODER, categorical_columns=("language",), numeric_columns=("turns",), category_buckets=5
)
CPU = torch.device("cpu")
numbers = st.one_of(st.none(), st.just(math.nan), st.floats(-1e300, 1e300), st.sampled_from([0.0, 1.0, -1.0, 3.0, 1e6]))


def tensors_by_row(as_micro_batch, **columns: Any) -> list[dict[str, Any]]:
    """The classifier's tensors, in the order in which the rows were given."""
    batch = as_micro_batch(**columns)
    tensors = classifier_tensors(batch, CONFIG, labels_of(CONFIG.label), CPU)
    position = {int(row): index for index, row in enumerate(batch.row_ids)}
    return [{name: tensor[position[row]].tolist() for name, tensor in tensors.items()} for row in range(len(position))]


def buckets(as_micro_batch, languages: list[Any], turns: list[Any]) -> list[list[int]]:
    turns = pa.array(turns, pa.float64(), from_pandas=False)
    rows = tensors_by_row(as_micro_batch, language=pa.array(languages, pa.string()), turns=turns)
    return [row["metadata_buckets"] for row in rows]


def numeric_bucket(value: float | None) -> int:
    """As the configuration says: 0 missing; 1 to 64 negative, 65 to 128 others, by quarter octaves."""
    if value is None or math.isnan(value):
        return 0
    quarter_octaves = 4 * math.log2(abs(value) + 1)
    return (1 if value < 0 else 65) + min(63, math.floor(quarter_octaves))


def test_a_row_has_its_tokens_its_mask_its_length_and_its_label(as_micro_batch) -> None:
    tokens = [[7, 8, 9], [4], [5, 6]]
    rows = tensors_by_row(as_micro_batch, input_ids=tokens, label=[1, 0, 1], language=["a"] * 3, turns=[1] * 3)
    assert [row["input_ids"] for row in rows] == [[7, 8, 9], [4, 0, 0], [5, 6, 0]]
    assert [row["attention_mask"] for row in rows] == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    assert [row["lengths"] for row in rows] == [3, 1, 2]
    assert [row["labels"] for row in rows] == [1.0, 0.0, 1.0]


def test_rows_of_one_length_need_no_mask(as_micro_batch) -> None:
    rows = tensors_by_row(as_micro_batch, input_ids=[[7, 8], [4, 5]], language=["a"] * 2, turns=[1] * 2)
    assert "attention_mask" not in rows[0]


@settings(deadline=None, max_examples=40)
@given(values=st.lists(numbers, min_size=1, max_size=8))
def test_a_numbers_bucket_is_its_sign_and_its_quarter_octave(as_micro_batch, values) -> None:
    found = buckets(as_micro_batch, ["a"] * len(values), values)
    for value, (_, bucket) in zip(values, found, strict=True):
        # A logarithm that lies on a border may be rounded to either side of it.
        expected = {numeric_bucket(value)}
        if value is not None and math.isfinite(value):
            expected |= {numeric_bucket(value * (1 - 1e-14)), numeric_bucket(value * (1 + 1e-14))}
        assert bucket in expected


def test_numbers_of_different_size_and_sign_have_different_buckets(as_micro_batch) -> None:
    values = [-1000.0, -10.0, -1.0, 0.0, 1.0, 2.0, 10.0, 1000.0, 1e30, None, math.nan]
    found = [bucket for _, bucket in buckets(as_micro_batch, ["a"] * len(values), values)]
    assert found == [40, 14, 5, 65, 69, 71, 78, 104, 128, 0, 0]
    assert max(found) < NUMERIC_BUCKETS


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint32(), pa.float32()])
def test_numbers_of_every_type_have_the_same_buckets(as_micro_batch, kind) -> None:
    rows = tensors_by_row(
        as_micro_batch, language=["a"] * 4, turns=pa.array([0, 3, None, 100], kind, from_pandas=False)
    )
    assert [row["metadata_buckets"][1] for row in rows] == [65, 73, 0, 91]


def test_text_where_a_number_was_promised_is_refused_by_name(as_micro_batch) -> None:
    with pytest.raises(DataError, match="metadata column 'turns' has type string"):
        tensors_by_row(as_micro_batch, language=["a"], turns=["three"])


@settings(deadline=None, max_examples=30)
@given(values=st.lists(st.one_of(st.none(), st.text(max_size=5)), min_size=1, max_size=8))
def test_a_names_bucket_is_its_hash_and_nothing_elses(as_micro_batch, values) -> None:
    """Whatever other rows hold."""
    expected = [
        0 if value is None else 1 + xxhash.xxh3_64_intdigest(value.encode()) % CONFIG.category_buckets
        for value in values
    ]
    assert [bucket for bucket, _ in buckets(as_micro_batch, values, [1.0] * len(values))] == expected


@settings(deadline=None, max_examples=30)
@given(data=st.data(), count=st.integers(2, 6))
def test_a_changed_value_moves_its_own_row_only(as_micro_batch, data, count) -> None:
    row = data.draw(st.integers(0, count - 1))
    before = buckets(as_micro_batch, ["en"] * count, [float(index) for index in range(count)])
    languages, turns = ["en"] * count, [float(index) for index in range(count)]
    languages[row], turns[row] = None, 1e6
    after = buckets(as_micro_batch, languages, turns)
    assert [index for index in range(count) if before[index] != after[index]] == [row]
    assert after[row] == [0, numeric_bucket(1e6)]
    assert np.array(before)[:, 0].all()
