"""Values become the same embeddings in the module that leaves as in training."""

import math
import types
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.models.config import NewEncoderConfig
from assay.training.methods.classify.batch import metadata_buckets
from assay.training.methods.classify.config import NUMERIC_BUCKETS, ClassifyConfig
from assay.training.methods.classify.exporting import load_exported, save_exported
from assay.training.methods.classify.modeling_assay import AssayClassifier, AssayClassifierConfig, bucket_of
from assay.training.methods.classify.network import ClassifierNetwork

CONFIG = ClassifyConfig(
    encoder=NewEncoderConfig(vocab_size=50, hidden_size=16, num_heads=2, intermediate_size=16, max_tokens=32),
    categorical_columns=("language",),
    numeric_columns=("turns",),
    category_buckets=5,
)
COLUMNS = (
    {"name": "language", "kind": "category", "buckets": 6},
    {"name": "turns", "kind": "number", "buckets": NUMERIC_BUCKETS},
)
numbers = st.one_of(st.none(), st.integers(-(2**40), 2**40), st.sampled_from([0.5, -0.25, math.nan, 1e300]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.none() | st.text(), numbers), min_size=1, max_size=5))
def test_a_value_has_the_bucket_that_it_had_in_training(as_micro_batch, rows: list[tuple[Any, Any]]) -> None:
    languages, turns = zip(*rows, strict=True)
    batch = as_micro_batch(
        input_ids=[[1]] * len(rows),
        label=[0] * len(rows),
        language=pa.array(languages, pa.string()),
        turns=pa.array(turns, pa.float64(), from_pandas=False),
    )
    trained = metadata_buckets(batch, CONFIG).tolist()
    for position, row in enumerate(batch.row_ids.tolist()):
        assert trained[position] == [bucket_of(rows[row][index], column) for index, column in enumerate(COLUMNS)]


TYPED = (
    (pa.bool_(), st.booleans()),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats(allow_nan=True)),
    (pa.float32(), st.floats(width=32)),
    (pa.string(), st.text()),
    (pa.date32(), st.dates()),
)


@pytest.mark.parametrize(("kind", "values"), TYPED, ids=[str(kind) for kind, _ in TYPED])
def test_a_name_of_every_type_has_the_bucket_that_it_had_in_training(as_micro_batch, kind, values) -> None:
    @settings(deadline=None, max_examples=20)
    @given(st.lists(values, min_size=1, max_size=20))
    def holds(found: list[Any]) -> None:
        config = CONFIG.model_copy(update={"numeric_columns": (), "category_buckets": 10**6})
        column = pa.array(found, kind, from_pandas=False)
        batch = as_micro_batch(input_ids=[[1]] * len(found), label=[0] * len(found), language=column)
        message = {"name": "language", "kind": "category", "buckets": 10**6 + 1, "type": str(kind)}
        rows = batch.row_ids.tolist()
        trained = metadata_buckets(batch, config)[:, 0].tolist()
        assert trained == [bucket_of(found[row], message) for row in rows]
        if kind not in (pa.string(), pa.date32()):  # as a CSV says it
            text = pa.array(found, kind, from_pandas=False).cast(pa.string()).to_pylist()
            assert trained == [bucket_of(text[row], message) for row in rows]

    holds()


@pytest.mark.parametrize(
    ("kind", "value", "alike"),
    [("bool", "False", False), ("bool", "TRUE", True), ("bool", 1, True), ("int64", 7.0, 7), ("int8", "7", 7),
     ("double", 7, 7.0), ("double", "7.0", 7.0)],
)  # fmt: skip
def test_a_value_of_another_spelling_is_the_same_one(kind: str, value: Any, alike: Any) -> None:
    column = {"name": "x", "kind": "category", "buckets": 10**6, "type": kind}
    assert bucket_of(value, column) == bucket_of(alike, column)


@pytest.mark.parametrize(
    ("kind", "value"), [("bool", "maybe"), ("bool", 2), ("int64", 7.5), ("int64", "x"), ("double", "x"),
                        ("timestamp[us]", 7)],
)  # fmt: skip
def test_a_value_that_the_column_can_not_hold_is_refused_by_name(kind: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"column 'x' is {value!r}, and in training it was {kind[:4]}"):
        bucket_of(value, {"name": "x", "kind": "category", "buckets": 10, "type": kind})


def test_a_row_without_a_column_is_refused_by_its_place_and_none_is_missing() -> None:
    config = AssayClassifierConfig(metadata=COLUMNS)
    model = types.SimpleNamespace(config=config)
    whole = {"language": "en", "turns": 2, "text": "beside it"}
    found = AssayClassifier.buckets_of(model, [whole, {"language": None, "turns": None}])
    assert found.tolist() == [[bucket_of(whole[column["name"]], column) for column in COLUMNS], [0, 0]]
    assert AssayClassifier.buckets_of(model, []).shape == (0, 2)
    text = "row 1: no column 'language', which the model needs; it has lang, turns. Give it, or None"
    with pytest.raises(ValueError, match=text):
        AssayClassifier.buckets_of(model, [whole, {"lang": "en", "turns": 2}])


def test_what_was_saved_is_loaded_as_the_network_that_it_was(tmp_path) -> None:
    torch.manual_seed(0)
    network = ClassifierNetwork(CONFIG).eval()
    save_exported(network, CONFIG, tmp_path, {"language": "string", "turns": "double"})
    again = load_exported(tmp_path).eval()
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    ids, lengths, buckets = torch.tensor([[3, 4, 5]]), torch.tensor([3]), torch.tensor([[2, 70]])
    assert torch.equal(network(ids, lengths, buckets), again(ids, lengths, buckets))
