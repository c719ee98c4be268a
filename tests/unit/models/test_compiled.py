"""Layers as programs: the same bits whatever came before, and where none fits, the layer as it is written."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.data.loader.line import LineShape
from assay.models.causal_config import NewCausalConfig
from assay.models.compiled import compile_layers, disable_compiled_layers, eager_layers
from assay.models.token_scores import CausalNetwork
from assay.training.numerics import digest_of_tensors
from language_rows import VOCABULARY, small_model
from unit.models.test_line_attention import line_scores, line_tensors
from unit.models.test_token_scores import padded, rows
from variants import soaked

pytestmark = pytest.mark.slow

SHAPES = [(1, 5), (2, 7), (3, 61), (1, 40), (7, 2), (2, 1), (4, 16), (2, 32), (1, 1)]
"""Lines and tokens; those that programs are made from, and sizes of the model, too."""
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"architecture": "gpt2", "num_kv_heads": None},
    "qwen3": {"architecture": "qwen3"},
    "checkpointed": {"checkpoint_activations": True},
}


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    torch.compiler.set_stance("default")


def compiled_network(**keys: Any) -> CausalNetwork:
    torch.manual_seed(0)
    network = CausalNetwork(NewCausalConfig.model_validate(small_model(**keys)))
    compile_layers(network, nullcontext())
    return network


def gradients(network: nn.Module, ids: Tensor) -> int:
    loss = network(ids).logprobs.sum() if ids.shape[1] > 1 else network.network(ids).logits.sum()
    return digest_of_tensors(torch.autograd.grad(loss, list(network.parameters()), allow_unused=False))


def ids_of(shape: tuple[int, int]) -> Tensor:
    return torch.arange(shape[0] * shape[1]).view(shape) * 7 % VOCABULARY


def digests(shapes: Sequence[tuple[int, int]], **keys: Any) -> dict[tuple[int, int], int]:
    torch.compiler.reset()
    network = compiled_network(**keys)
    return {shape: gradients(network, ids_of(shape)) for shape in shapes}


@pytest.mark.parametrize("way", ["llama", *soaked("gpt2", "qwen3"), "checkpointed"])
def test_bits_hang_on_no_shape_that_came_before(way: str) -> None:
    assert digests(SHAPES, **VARIANTS[way]) == digests(SHAPES[::-1], **VARIANTS[way])


def test_only_training_runs_the_programs_and_none_is_made_on_the_way() -> None:
    network, calls = compiled_network(), []
    network.network.model.layers[1].mlp.register_forward_hook(lambda *_: calls.append(1))
    ids = ids_of((2, 9))
    gradients(network, ids)
    assert not calls, "the layer ran as it is written"
    with torch.no_grad():
        network(ids)
    assert len(calls) == 1
    with eager_layers():
        gradients(network, ids)
    assert len(calls) == 2
    network.eval()
    gradients(network, ids)
    assert len(calls) == 3
    network.train()
    gradients(network, ids_of((2, 64)))
    assert len(calls) == 3


def test_lines_have_one_program_whatever_their_rows() -> None:
    line = LineShape(tokens=20, rows=6, row_tokens=8)
    lines = [
        line_tensors(rows(*lengths), padded(rows(*lengths))[1], line) for lengths in ((5, 3, 1, 7), (8, 2, 8), (4,))
    ]

    def found(order: Sequence[int], *, compiles: bool) -> tuple[dict[int, list[Tensor]], list[int]]:
        torch.compiler.reset()
        torch.manual_seed(0)
        network, calls = CausalNetwork(NewCausalConfig.model_validate(small_model())), list[int]()
        if compiles:
            compile_layers(network, nullcontext(), line)
        network.network.model.layers[1].mlp.register_forward_hook(lambda *_: calls.append(1))
        weights = list(network.parameters())
        return {
            index: list(torch.autograd.grad(line_scores(network, lines[index]).sum(), weights)) for index in order
        }, calls

    (one, calls), (other, _), (as_written, _) = (
        found([0, 1, 2], compiles=True), found([2, 1, 0], compiles=True), found([0, 1, 2], compiles=False)
    )  # fmt: skip
    assert not calls, "the layer ran as it is written"
    for index, gradients_of_line in one.items():
        for ours, reversed_order, written in zip(gradients_of_line, other[index], as_written[index], strict=True):
            assert torch.equal(ours, reversed_order)
            torch.testing.assert_close(ours, written, rtol=1e-4, atol=1e-5)


def test_a_model_without_programs_has_none_after_one_that_had() -> None:
    def as_written(**keys: Any) -> int:
        torch.manual_seed(0)
        return gradients(CausalNetwork(NewCausalConfig.model_validate(small_model(**keys))), ids_of((2, 9)))

    alone = as_written()
    compiled_network()
    disable_compiled_layers()
    assert as_written(checkpoint_activations=True) == alone
