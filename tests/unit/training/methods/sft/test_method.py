"""What a step of fine-tuning adds up to, whatever its rows lie in."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.data.dataset.dataset import Dataset
from assay.data.loader.batch import MicroBatch
from assay.training.methods.registry import method_of
from assay.training.methods.sft.method import SftMethod
from assay.training.recipe import Recipe
from assay.training.trainer.lane_forward import LaneForward
from language_rows import language_dataset, sft_recipe, small_model
from unit.training.methods.sft.test_batch import config, packed, padded, rows_and_spans

CPU = torch.device("cpu")


@cache
def method(train_on: str) -> SftMethod:
    keys = {**config(train_on).model_dump(), "model": small_model(vocab_size=99)}
    result = method_of(type(config(train_on)).model_validate(keys))
    assert isinstance(result, SftMethod)
    return result


@cache
def model() -> nn.Module:
    torch.manual_seed(0)
    return method("all").build_model()


def step(batches: Sequence[MicroBatch], train_on: str) -> list[Tensor]:
    """Loss, metrics and gradient of a step of these micro-batches."""
    forward = LaneForward(method(train_on), device=CPU, precision="float32", seed=0)
    losses = [forward.loss_of(model(), batch) for batch in batches]
    weight = max(1, sum(map(forward.weight_of, batches)))
    total = sum(loss.sum for loss in losses) / weight
    metrics = [sum(loss.metrics[name].sum for loss in losses) / weight for name in forward.metrics]
    assert isinstance(total, Tensor)
    return [total, *metrics, *torch.autograd.grad(total, list(model().parameters()))]


@settings(max_examples=25, deadline=None)
@given(data=st.data(), per_line=st.integers(1, 3), train_on=st.sampled_from(["all", "spans"]))
def test_a_step_does_not_depend_on_how_its_rows_lie(data: Any, per_line: int, train_on: str) -> None:
    rows, spans = data.draw(rows_and_spans())
    order = data.draw(st.permutations(range(len(rows))))
    cut = data.draw(st.integers(1, len(rows)))
    moved = [rows[index] for index in order], [spans[index] for index in order]
    one = step([padded(rows, spans)], train_on)
    variants = {
        "padded further": [padded(rows, spans, data.draw(st.integers(1, 9)))],
        "in another order": [padded(*moved)],
        "packed": [packed(*moved, per_line)],
        "in two": [
            padded(part_rows, part_spans)
            for part_rows, part_spans in (
                (moved[0][:cut], moved[1][:cut]),
                (moved[0][cut:], moved[1][cut:]),
            )
            if part_rows
        ],
    }
    for variant, batches in variants.items():
        for number, (found, expected) in enumerate(zip(step(batches, train_on), one, strict=True)):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=f"{variant}: {number}")


@settings(max_examples=15, deadline=None)
@given(drawn=rows_and_spans(), per_line=st.integers(1, 3))
def test_a_rows_score_is_its_own(drawn: Any, per_line: int) -> None:
    rows, spans = drawn
    method_, batches = method("spans"), (padded(rows, spans), packed(rows, spans, per_line))
    with torch.no_grad():
        predicted = [method_.predictions(model(), method_.tensors(batch, CPU)) for batch in batches]
        alone = [padded([row], [pair]) for row, pair in zip(rows, spans, strict=True)]
        item = [
            float(LaneForward(method_, device=CPU, precision="float32", seed=0).loss_of(model(), one).sum)
            for one in alone
        ]
    weights = [max(1, method_.weight(one)) for one in alone]
    expected = torch.tensor([total / weight for total, weight in zip(item, weights, strict=True)], dtype=torch.float64)
    for columns in predicted:
        torch.testing.assert_close(columns["nats_per_token"], expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(columns["token_accuracy"], predicted[0]["token_accuracy"])


def test_a_batch_with_nothing_to_learn_has_gradients_that_are_zero() -> None:
    found = step([padded([[1], [2, 3]], [[], []])], "spans")
    assert all(not tensor.any() for tensor in found)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_dataset(tmp_path_factory.mktemp("language"))


@pytest.mark.parametrize(
    ("model_keys", "message"),
    [
        (
            {"max_tokens": 20},
            "method.model: it takes 20 tokens, but the longest row of dataset 'source' has 24",
        ),
        ({"vocab_size": 39}, "method.model: its vocabulary has 39 tokens, but .* holds token 39"),
    ],
)
def test_rows_that_the_model_cannot_take_are_refused(dataset: Path, model_keys: dict[str, Any], message: str) -> None:
    recipe = Recipe.model_validate(sft_recipe(dataset, method={"model": small_model(**model_keys)}))
    with pytest.raises(Exception, match=message):
        recipe.method.check_dataset(Dataset.open(dataset).manifest)


def test_a_model_that_cannot_tell_rows_apart_takes_no_packed_ones(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "vocab_size": 40}')
    method_keys = {"model": {"type": "pretrained", "path": str(tmp_path)}}
    tree = sft_recipe(dataset, loader={"layout": {"type": "packed", "sequence_tokens": 64}}, method=method_keys)
    with pytest.raises(ValueError, match=r"layout\.type=packed"):
        Recipe.model_validate(tree)


def test_a_recipe_with_an_encoder_need_not_say_that_it_classifies(dataset: Path) -> None:
    tree = sft_recipe(dataset)
    tree["method"] = {"encoder": {"type": "new", "vocab_size": 40}}
    assert Recipe.model_validate(tree).method.type == "classify"
