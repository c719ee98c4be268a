"""Every method on lines: the loss, metrics and gradients of padded rows, in tensors whose shapes no row changes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.micro_batches import micro_batch
from agreement.tiny_models import VOCABULARY, save_tiny
from assay.data.loader.batch import MicroBatch
from assay.data.loader.line import LineShape
from assay.training.methods.grpo.batch import ADVANTAGE, SAMPLER_LOGPROBS
from assay.training.methods.registry import AnyMethodConfig, method_of
from assay.training.numerics import MetricSum
from no_host_waits import NoHostWaits
from prompt_rows import GRADER

CPU = torch.device("cpu")
LINE = LineShape(tokens=96, rows=7, row_tokens=16)
GRPO = {"type": "grpo", "rewards": [{"grader": GRADER}], "group_size": 2, "sampling": {"max_tokens": 4}}
METHODS: dict[str, dict[str, Any]] = {
    "sft": {"type": "sft", "train_on": "all"},
    "sft on spans": {"type": "sft", "train_on": "spans"},
    "reward": {"type": "reward", "centring": 0.1},
    "dpo": {"type": "dpo", "loss": {"type": "sigmoid", "beta": 0.3, "label_smoothing": 0.1}},
    "dpo, normalized": {"type": "dpo", "loss": {"type": "sigmoid_norm", "beta": 2.0}, "sft_weight": 0.3},
    "dpo, ipo": {"type": "dpo", "loss": {"type": "ipo", "beta": 0.2}},
    "dpo, columns": {"type": "dpo", "reference": {"type": "columns"}},
    **{
        f"grpo, {loss}": {**GRPO, "loss": {"type": loss}, "kl": kl}
        for loss, kl in (("dapo", 0.0), ("bnpo", 0.0), ("grpo", 0.1), ("dr_grpo", 0.0), ("gspo", 0.0), ("cispo", 0.0))
    },
    "grpo, several updates": {**GRPO, "updates_per_rollout": 2, "kl": 0.1},
}
any_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A model and a reference."""
    folder = tmp_path_factory.mktemp("models")
    return [str(save_tiny(LlamaForCausalLM, folder / str(seed), seed=seed)) for seed in (1, 2)]


def built(name: str, folders: list[str]) -> tuple[Any, nn.Module, dict[str, nn.Module]]:
    tree = {**METHODS[name], "model": {"type": "pretrained", "path": folders[0]}}
    if tree["type"] in ("dpo", "grpo"):
        tree.setdefault("reference", {"type": "frozen", "path": folders[1]} if tree["type"] == "dpo" else {})
    method = method_of(TypeAdapter(AnyMethodConfig).validate_python(tree))
    torch.manual_seed(0)
    model = method.build_model().eval()
    return method, model, {key: frozen.eval() for key, frozen in method.build_frozen_models().items()}


def rows_of(name: str, lengths: list[int], seed: int = 0) -> MicroBatch:
    """Rows of a method, padded: prompts of two tokens, or pairs, or completions with their advantages."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(0, VOCABULARY, length).tolist() for length in lengths]
    rows = [{"input_ids": text, "trained_spans": [1, len(text) // 2, len(text) - 1, len(text)]} for text in texts]
    for row, length in zip(rows, lengths, strict=True):
        row |= {"prompt_tokens": 2, "margin": 0.1 * length}
        rejected = rng.integers(0, VOCABULARY, max(3, length - 2)).tolist()
        row |= {"rejected_ids": [*row["input_ids"][:2], *rejected[2:]]}
        row |= {"ref_chosen_logps": -1.5 * length, "ref_rejected_logps": -2.0 * length}
    batch = micro_batch(rows)
    if not name.startswith("grpo"):
        return batch
    columns = {
        "prompt_tokens": pa.array([2] * len(rows), pa.int32()),
        ADVANTAGE: pa.array(rng.normal(size=len(rows)), pa.float32()),
        SAMPLER_LOGPROBS: pa.array([rng.normal(-3, 0.3, length - 2) for length in lengths], pa.list_(pa.float32())),
    }
    return MicroBatch(batch.row_ids, {"input_ids": batch.tokens}, columns)


def line_of(name: str) -> LineShape:
    return LINE._replace(sequences=2 if name.startswith(("dpo", "reward")) else 1)


def passed(
    method: Any, model: nn.Module, tensors: Mapping[str, Tensor], frozen: Mapping[str, nn.Module]
) -> tuple[Tensor, Mapping[str, MetricSum], tuple[Tensor, ...]]:
    loss = method.loss(model, tensors, frozen)
    return loss.sum, loss.metrics, torch.autograd.grad(loss.sum, list(model.parameters()))


@any_method
@pytest.mark.parametrize("lengths", [[5, 9, 3, 12, 4, 11], [7], [6, 5, 6]], ids=str)
def test_a_line_has_the_loss_of_its_rows_and_no_wait(name: str, lengths: list[int], folders: list[str]) -> None:
    method, model, frozen = built(name, folders)
    padded = rows_of(name, lengths)
    line = replace(padded, line=line_of(name))
    assert method.weight(line) == method.weight(padded)
    loss, metrics, gradients = passed(method, model, method.tensors(padded, CPU), frozen)
    tensors = method.tensors(line, CPU)
    with NoHostWaits():
        line_loss, line_metrics, line_gradients = passed(method, model, tensors, frozen)
    torch.testing.assert_close(line_loss, loss, rtol=1e-6, atol=1e-6)
    assert line_metrics.keys() == metrics.keys()
    for key, metric in metrics.items():
        # Margins are small differences of sums in float32.
        assert float(line_metrics[key].sum) == pytest.approx(float(metric.sum), rel=1e-6, abs=3e-5), key
        assert float(line_metrics[key].weight) == pytest.approx(float(metric.weight)), key
    scale = max(float(gradient.abs().max()) for gradient in gradients)
    for ours, expected_gradients in zip(line_gradients, gradients, strict=True):
        torch.testing.assert_close(ours, expected_gradients, rtol=0, atol=1e-6 * scale)


@any_method
def test_shapes_are_those_of_the_line(name: str, folders: list[str]) -> None:
    method, *_ = built(name, folders)
    shapes = [
        {
            key: tensor.shape
            for key, tensor in method.tensors(replace(rows_of(name, lengths), line=line_of(name)), CPU).items()
        }
        for lengths in ([5, 9, 3], [12], [3] * 7)
    ]
    assert shapes[0] == shapes[1] == shapes[2]


def test_few_and_many_scored_tokens_have_two_shapes(folders: list[str]) -> None:
    method, *_ = built("sft", folders)
    few, many = (
        method.tensors(replace(rows_of("sft", lengths), line=LINE), CPU) for lengths in ([9, 9], [16, 16, 16, 16, 16])
    )
    assert len(few["targets"]) == len(few["indices"]) == 48
    assert len(many["targets"]) == 96 and "indices" not in many


def test_later_updates_of_a_step_get_the_line_of_the_first(folders: list[str]) -> None:
    method, model, frozen = built("grpo, several updates", folders)
    line = replace(rows_of("grpo", [5, 9, 3]), line=LINE)
    tensors = method.tensors(line, CPU)
    first = method.loss(model, tensors, frozen)
    second = method.loss(model, {**tensors, **first.carried}, frozen)
    torch.testing.assert_close(second.sum, first.sum)
    assert first.carried["old_logprobs"].shape == tensors["loss_mask"].shape
