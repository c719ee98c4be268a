"""Several classes and numbers, beside plain PyTorch and NumPy."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn.functional import cross_entropy, l1_loss, mse_loss

from assay.base.errors import ConfigError, DataError
from assay.models.config import NewEncoderConfig
from assay.records.dataset import DatasetManifest, LengthProfile
from assay.training.methods.classify.config import ClassifyConfig
from assay.training.methods.classify.label_config import BinaryLabel, ClassesLabel, NumberLabel
from assay.training.methods.classify.labels import labels_of
from assay.training.methods.classify.method import ClassifyMethod

NAMES = ("ham", "spam", "eggs")
CLASSES = ClassesLabel(type="classes", names=NAMES)
NUMBER = NumberLabel(type="number", mean=10.0, scale=4.0)
ENCODER = NewEncoderConfig(vocab_size=9, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8, max_tokens=4)
outputs = st.lists(st.lists(st.floats(-20, 20, width=32), min_size=3, max_size=3), min_size=1, max_size=6)


@settings(deadline=None, max_examples=40)
@given(logits=outputs, data=st.data())
def test_of_classes_loss_and_predictions_are_those_of_plain_torch(logits, data) -> None:
    rows = data.draw(st.lists(st.sampled_from(NAMES), min_size=len(logits), max_size=len(logits)))
    labels, input_logits = labels_of(CLASSES), torch.tensor(logits)
    targets = labels.targets(pa.array(rows))
    assert targets.tolist() == [NAMES.index(row) for row in rows]
    loss = labels.loss(input_logits, targets)
    torch.testing.assert_close(loss.sum, cross_entropy(input_logits, targets, reduction="sum"))
    message = labels.predictions(input_logits, targets)
    expected = cross_entropy(input_logits.double(), targets, reduction="none")
    torch.testing.assert_close(message["log_loss"], expected)
    assert message["predicted"].tolist() == input_logits.argmax(dim=1).tolist()
    assert message["accuracy"].sum() == loss.metrics["accuracy"].sum


@settings(deadline=None, max_examples=40)
@given(values=st.lists(st.tuples(st.floats(-9, 9, width=32), st.integers(-50, 50)), min_size=1, max_size=6))
def test_of_numbers_loss_and_predictions_are_those_of_plain_torch(values) -> None:
    labels, output_z = labels_of(NUMBER), torch.tensor([z for z, _ in values])
    true = np.array([label for _, label in values], np.float64)
    targets = labels.targets(pa.array(true))
    loss = labels.loss(output_z, targets)
    torch.testing.assert_close(loss.sum, mse_loss(output_z, torch.tensor((true - 10) / 4).float(), reduction="sum"))
    message = labels.predictions(output_z, targets)
    predicted, in_unit = output_z.double() * 4 + 10, torch.tensor(true)
    torch.testing.assert_close(message["prediction"], predicted)
    close = {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(message["absolute_error"].mean(), l1_loss(predicted, in_unit), **close)
    torch.testing.assert_close(message["squared_error"].mean(), mse_loss(predicted, in_unit), rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(
        loss.metrics["absolute_error"].sum.double(), message["absolute_error"].sum(), rtol=1e-4, atol=1e-3
    )


def test_of_two_names_one_counts_as_1() -> None:
    labels = labels_of(BinaryLabel(positive="spam"))
    assert labels.targets(pa.array(["ham", "spam", "eggs"])).tolist() == [0.0, 1.0, 0.0]
    assert labels_of(BinaryLabel()).targets(pa.array([True, False])).tolist() == [1.0, 0.0]


def test_a_label_that_is_no_class_is_named() -> None:
    with pytest.raises(DataError, match=r"label is 'bacon', which method.label.names does not list"):
        labels_of(CLASSES).targets(pa.array(["ham", "bacon"]))
    assert labels_of(ClassesLabel(type="classes", names=("1", "3"))).targets(pa.array([3, 1])).tolist() == [
        1,
        0,
    ]


@pytest.mark.parametrize(("label", "shape"), [(BinaryLabel(), (3,)), (CLASSES, (3, 3)), (NUMBER, (3,))])
def test_the_network_says_a_number_or_one_for_each_class(as_micro_batch, label: Any, shape) -> None:
    config = ClassifyConfig(encoder=ENCODER, label=label)
    method = ClassifyMethod(config)
    model = method.build_model()
    assert config.num_parameters() == sum(weights.numel() for weights in model.parameters())
    column = ["ham", "spam", "ham"] if label is CLASSES else [0, 1, 0]
    batch = as_micro_batch(input_ids=[[1], [2, 3], [4]], label=column)
    tensors = method.tensors(batch, torch.device("cpu"))
    assert method.outputs(model, tensors).shape == shape
    assert method.loss(model, tensors, {}).sum.requires_grad
    blank = method.blank(torch.device("cpu"))
    assert {name: tensor.dtype for name, tensor in blank.items()} == {
        name: tensor.dtype for name, tensor in tensors.items() if name != "attention_mask"
    }
    assert torch.isfinite(method.loss(model, blank, {}).sum)


def manifest(kind: str, **counts: int) -> DatasetManifest:
    lengths = LengthProfile(mean=1, p50=1, p95=1, p99=1, max=1, histogram_edges=(0, 1), histogram_rows=(1,))
    return DatasetManifest(
        name="d", source_url="", fingerprint="", row_groups_sha256="", footers_sha256="", shards=(), num_rows=3,
        columns={"input_ids": "list", "label": kind}, num_row_groups=1, num_tokens=3, max_token_id=1,
        lengths=lengths, label_counts=counts, column_profiles=(), format="labelled",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("label", "dataset", "text"),
    [
        (
            BinaryLabel(),
            manifest("int8", **{"0": 1, "2": 1}),
            r"other than 0 and 1: '2'.*type: classes, names: \[0, 2\]\}",
        ),
        (BinaryLabel(), manifest("double"), r"\(numbers\).*method.label=\{type: number\}"),
        (BinaryLabel(positive="spam"), manifest("string", ham=2), "no row .* has this label. It has: 'ham'"),
        (
            CLASSES,
            manifest("string", ham=1, bacon=1),
            "1 label that method.label.names does not list: 'bacon'. List it, or .* without its rows",
        ),
        (CLASSES, manifest("double"), "are numbers, and method.label is classes"),
        (NUMBER, manifest("string", ham=1, spam=2), "are of type string, and method.label is number"),
        (CLASSES, manifest("string", ham=1), None),
        (NUMBER, manifest("int64"), None),
        (BinaryLabel(), manifest("bool", **{"0": 1}), None),
    ],
)
def test_a_dataset_of_other_labels_is_refused_with_the_cure(label: Any, dataset, text: str | None) -> None:
    config = ClassifyConfig(encoder=ENCODER, label=label)
    if text is None:
        config.check_dataset(dataset)
        return
    with pytest.raises(ConfigError, match=text):
        config.check_dataset(dataset)


def test_names_differ_and_are_several() -> None:
    with pytest.raises(ValidationError, match="'a' is listed twice"):
        ClassesLabel(type="classes", names=("a", "b", "a"))
    with pytest.raises(ValidationError, match="at least 2 items"):
        ClassesLabel(type="classes", names=("a",))
    with pytest.raises(ValidationError, match="a metadata column is named predicted"):
        ClassifyConfig(encoder=ENCODER, categorical_columns=("predicted",))
