"""Rows of a line beside rows that are padded: same scores, same gradients, in every architecture."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from assay.base.errors import ConfigError
from assay.data.loader.line import LineShape, scored_arrays
from assay.models.causal_config import PACKS, Architecture, PretrainedCausalConfig
from assay.models.line_attention import LINE_ATTENTION, UNBOUNDED, _attend
from assay.models.token_scores import CausalNetwork, hidden_states, line_of, row_sums, row_totals
from no_host_waits import NoHostWaits
from unit.models.test_token_scores import gradients, network, padded, rows

LINE = LineShape(tokens=20, rows=6, row_tokens=8)
WITH_WINDOWS = {
    "mistral": {"sliding_window": 3},
    "qwen2": {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]},
    "qwen3": {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]},
}


def transformers_network(architecture: str, **keys: Any) -> CausalNetwork:
    """A network of any architecture, also of those that no recipe names."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = AutoConfig.for_model(
        architecture, vocab_size=40, intermediate_size=32, head_dim=4, pad_token_id=None, **{**sizes, **keys}
    )
    model = network()
    torch.manual_seed(7)
    model.network = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model


def line_tensors(parts: list[Tensor], scored: Tensor, line: LineShape = LINE) -> dict[str, Tensor]:
    ids, _ = padded(parts)
    arguments = ids.numpy(), np.array(list(map(len, parts)), np.int32)
    arrays = scored_arrays(*arguments, scored.numpy(), line)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def line_scores(model: CausalNetwork, tensors: dict[str, Tensor]) -> Tensor:
    scores = model(tensors["input_ids"], tensors["position_ids"], tensors["scored"], line=line_of(tensors))
    return scores.logprobs[0]


@pytest.mark.parametrize(
    ("architecture", "keys"),
    [*((name, {}) for name in sorted(PACKS)), *WITH_WINDOWS.items()],
    ids=lambda value: value if isinstance(value, str) else "windows" if value else "whole",
)
@pytest.mark.parametrize("scores", ["all tokens", "last tokens"])
def test_rows_of_a_line_do_not_see_one_another(architecture: str, keys: dict[str, Any], scores: str) -> None:
    is_plain = architecture in get_args(Architecture) and not keys
    model = (network(architecture) if is_plain else transformers_network(architecture, **keys)).double()
    parts = rows(5, 3, 1, 7)
    ids, scored = padded(parts)
    if scores == "last tokens":
        scored[:, :3] = False
    expected = model(ids, None, scored)
    tensors = line_tensors(parts, scored)
    assert ("indices" in tensors) == (scores == "last tokens")
    with NoHostWaits():
        found = line_scores(model, tensors)
        ours = gradients(model, found.sum())
    torch.testing.assert_close(found[tensors["scored"][0]], expected.logprobs[scored], rtol=1e-9, atol=1e-9)
    assert not found[~tensors["scored"][0]].any()
    expected_gradients = gradients(model, expected.logprobs.sum())
    # Gemma's norms are in float32.
    scale = max(float(gradient.abs().max()) for gradient in expected_gradients) * (
        1e3 if architecture == "gemma" else 1
    )
    for our, their in zip(ours, expected_gradients, strict=True):
        torch.testing.assert_close(our, their, rtol=0, atol=1e-9 * scale)


def test_a_model_that_saw_a_line_computes_other_rows_as_before() -> None:
    model, parts = network("mistral"), rows(5, 3, 1, 7)
    ids, scored = padded(parts)
    packed = torch.cat(parts)[None], torch.cat([torch.arange(len(row)) for row in parts])[None]
    before = model(ids, None, scored), model(*packed)
    line_scores(model, line_tensors(parts, scored))
    assert model.network.config._attn_implementation == LINE_ATTENTION
    for one, other in zip(before, (model(ids, None, scored), model(*packed)), strict=True):
        assert torch.equal(one.logprobs, other.logprobs)


def test_layers_that_are_computed_twice_see_the_same_rows() -> None:
    parts = rows(5, 3, 1, 7)
    tensors = line_tensors(parts, padded(parts)[1])
    plain, twice = (network(checkpoint_activations=flag).train() for flag in (False, True))
    for one, other in zip(*(gradients(m, line_scores(m, tensors).sum()) for m in (plain, twice)), strict=True):
        assert torch.equal(one, other)


def test_autocast_reaches_attention() -> None:
    parts = rows(5, 3, 1, 7)
    tensors, model = line_tensors(parts, padded(parts)[1]), network()
    with torch.autocast("cpu", torch.bfloat16):
        low = line_scores(model, tensors)
    torch.testing.assert_close(low, line_scores(model, tensors), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("window", [UNBOUNDED, 0, 2, 30])
def test_attention_is_that_of_its_definition(window: int) -> None:
    torch.manual_seed(0)
    borders = torch.tensor([0, 5, 6, 13, 20, 23, 23, 23], dtype=torch.int32)
    states = [torch.randn(23, heads, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    found, _ = _attend(*states, borders, 23, 0.3, window)
    index, (query, key, value) = torch.arange(23), (states[0], *(s.repeat_interleave(2, dim=1) for s in states[1:]))
    row = torch.bucketize(index, borders[1:].long(), right=True)
    is_seen = (row[:, None] == row) & (index[:, None] >= index)
    if window != UNBOUNDED:
        is_seen &= index[:, None] - index <= window
    logits = torch.einsum("qhw,khw->hqk", query, key) * 0.3
    expected = torch.einsum("hqk,khw->qhw", logits.masked_fill(~is_seen, -torch.inf).softmax(-1), value)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradient = torch.randn_like(found)
    for ours, expected_gradients in zip(
        torch.autograd.grad(found, states, gradient), torch.autograd.grad(expected, states, gradient), strict=True
    ):
        torch.testing.assert_close(ours, expected_gradients, rtol=1e-12, atol=1e-12)


def test_the_operator_keeps_what_torch_expects_of_one() -> None:
    borders = torch.tensor([0, 3, 5, 5], dtype=torch.int32)
    states = [torch.randn(5, heads, 8, requires_grad=True) for heads in (4, 2, 2)]
    torch.library.opcheck(_attend, (*states, borders, 5, 0.3, 2))


def test_sums_of_rows_and_their_gradients() -> None:
    values = torch.randn(7, dtype=torch.float64, requires_grad=True)
    row_of = torch.tensor([0, 0, 2, 2, 2, 0, 1])
    member = (row_of == torch.arange(4)[:, None]).double()
    weights = torch.arange(1.0, 5.0, dtype=torch.float64)
    with NoHostWaits():
        sums, totals = row_sums(values, row_of, 4), row_totals(values, row_of, 4)
        ours = torch.autograd.grad((sums * weights).sum() + (totals * values.detach()).sum(), values)[0]
    torch.testing.assert_close(sums, member @ values)
    torch.testing.assert_close(totals, member.T @ (member @ values))
    torch.testing.assert_close(ours, member.T @ weights + member.T @ (member @ values.detach()))


def test_a_model_whose_attention_is_not_known_is_refused() -> None:
    model, parts = network(), rows(5, 3)
    model.network.config.model_type = "bloom"
    with pytest.raises(ConfigError, match="the attention of a 'bloom' model is not known"):
        line_scores(model, line_tensors(parts, padded(parts)[1]))


def test_dropout_in_attention_is_refused() -> None:
    model, parts = network().train(), rows(5, 3)
    for layer in model.network.model.layers:
        layer.self_attn.attention_dropout = 0.1
    tensors = line_tensors(parts, padded(parts)[1])
    with pytest.raises(ConfigError, match="LlamaAttention uses dropout in its attention"):
        line_scores(model, tensors)
    hidden_states(model.eval().network.model, tensors["input_ids"], tensors["position_ids"])


def test_a_folder_with_dropout_in_attention_takes_no_lines(tmp_path: Any) -> None:
    config = PretrainedCausalConfig(type="pretrained", path=str(tmp_path))
    assert config.takes_lines
    for text, takes in (
        ('{"model_type": "gpt2", "attn_pdrop": 0.1}', False),
        ('{"model_type": "gpt2", "attn_pdrop": 0.0}', True),
        ('{"model_type": "gemma2"}', False),
        ('{"model_type": "llama", "attention_dropout": 0.0}', True),
    ):
        (tmp_path / "config.json").write_text(text)
        assert config.takes_lines is takes
