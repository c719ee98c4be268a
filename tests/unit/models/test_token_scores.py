"""The wrapper beside plain transformers: same scores, same gradients, whatever pads or shares a sequence."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from assay.base.errors import ConfigError
from assay.models.causal import build_causal, build_decoder
from assay.models.causal_config import (
    PACKS,
    Architecture,
    NewCausalConfig,
    PretrainedCausalConfig,
)
from assay.models.token_scores import CausalNetwork, hidden_states

SMALL = {
    "vocab_size": 40, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "intermediate_size": 32,
    "max_tokens": 32,
}  # fmt: skip

any_architecture = pytest.mark.parametrize("architecture", get_args(Architecture))


def network(architecture: str = "llama", **keys: Any) -> CausalNetwork:
    torch.manual_seed(7)
    shared = {} if architecture == "gpt2" else {"num_kv_heads": 2}
    return CausalNetwork(NewCausalConfig(architecture=architecture, **{**SMALL, **shared, **keys}))


def rows(*lengths: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(40, (length,), generator=generator) for length in lengths]


def padded(parts: list[Tensor], width: int | None = None) -> tuple[Tensor, Tensor]:
    """Input ids, and where the next token is one of the row."""
    width = width or max(map(len, parts))
    ids = torch.stack([torch.cat([row, row.new_zeros(width - len(row))]) for row in parts])
    scored = torch.arange(1, width) < torch.tensor([len(row) for row in parts])[:, None]
    return ids, scored


def gradients(model: CausalNetwork, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@any_architecture
@pytest.mark.parametrize("tied", [False, True])
def test_log_probs_and_gradients_are_those_of_transformers(architecture: str, tied: bool) -> None:
    model = network(architecture, tie_embeddings=tied).double()
    ids, scored = padded(rows(9, 5, 12))
    labels = torch.where(torch.cat([scored.new_zeros(3, 1), scored], dim=1), ids, -100)
    mask = (torch.arange(12) < torch.tensor([9, 5, 12])[:, None]).long()
    completion = model.network(input_ids=ids, attention_mask=mask, labels=labels)
    reference = torch.nn.functional.cross_entropy(completion.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    ours = -model(ids, None, scored).logprobs.sum() / scored.sum()
    assert ours.item() == pytest.approx(completion.loss.item(), rel=1e-6)  # which is in float32, whatever its input
    torch.testing.assert_close(ours, reference, rtol=1e-10, atol=0)
    for our, their in zip(gradients(model, ours), gradients(model, reference), strict=True):
        torch.testing.assert_close(our, their, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("architecture", sorted(PACKS))
def test_rows_that_share_a_sequence_do_not_see_one_another(architecture: str) -> None:
    if architecture in get_args(Architecture):
        model = network(architecture)
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
        config = AutoConfig.for_model(
            architecture, vocab_size=40, intermediate_size=32, head_dim=4, pad_token_id=None, **sizes
        )
        torch.manual_seed(7)
        model = network()
        model.network = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model.double()
    parts = rows(5, 3, 1, 7)
    ids, scored = padded(parts)
    apart = model(ids, None, scored)
    packed = torch.cat([*parts, torch.zeros(4, dtype=torch.int64)])[None]
    positions = torch.cat([*(torch.arange(len(row)) for row in parts), torch.zeros(4, dtype=torch.int64)])[None]
    together = model(packed, positions, positions[:, 1:] > 0)
    expected = positions[0, 1:] > 0
    torch.testing.assert_close(together.logprobs[0][expected], apart.logprobs[scored], rtol=1e-9, atol=1e-9)
    for our, their in zip(
        gradients(model, together.logprobs.sum()), gradients(model, apart.logprobs.sum()), strict=True
    ):
        torch.testing.assert_close(our, their, rtol=1e-6, atol=1e-8)


MODEL = network()


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), wider=st.integers(0, 5))
def test_padding_changes_no_score(lengths: list[int], wider: int) -> None:
    parts = rows(*lengths, seed=len(lengths))
    narrow, wide = padded(parts), padded(parts, max(lengths) + wider)
    before, after = MODEL(narrow[0], None, narrow[1]), MODEL(wide[0], None, wide[1])
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one[narrow[1]], other[wide[1]], rtol=1e-5, atol=1e-5)
        assert not other[~wide[1]].any()


@any_architecture
@pytest.mark.parametrize("tied", [False, True])
def test_a_configuration_knows_how_many_numbers_are_trained(architecture: str, tied: bool) -> None:
    shared = {} if architecture == "gpt2" else {"num_kv_heads": 2}
    config = NewCausalConfig(architecture=architecture, tie_embeddings=tied, **SMALL, **shared)
    assert config.num_parameters() == sum(parameter.numel() for parameter in build_causal(config).parameters())


def test_layers_that_are_computed_twice_give_the_same_bits_and_keep_less() -> None:
    ids = rows(32)[0][None]
    plain, stored_plain = gradients_and_stored(network(), ids)
    twice, stored_doubled = gradients_and_stored(network(checkpoint_activations=True), ids)
    assert all(torch.equal(one, other) for one, other in zip(plain, twice, strict=True))
    assert 2 * stored_doubled < stored_plain


def gradients_and_stored(model: CausalNetwork, ids: Tensor) -> tuple[list[Tensor], int]:
    """And how many numbers the forward pass keeps for the backward pass."""
    retained: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        retained.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(ids).logprobs.sum()
    num_stored = sum(retained)
    return gradients(model, loss), num_stored


def test_a_saved_folder_has_the_same_scores(tmp_path: Path) -> None:
    model = network()
    model.network.save_pretrained(tmp_path)
    config = PretrainedCausalConfig(type="pretrained", path=str(tmp_path))
    ids = rows(8)[0][None]
    assert torch.equal(CausalNetwork(config)(ids).logprobs, model(ids).logprobs)
    assert config.shape() == (40, 32) and config.packs
    assert config.num_parameters() == sum(parameter.numel() for parameter in model.parameters())


def test_states_come_without_a_head_too() -> None:
    config = NewCausalConfig(**SMALL)
    torch.manual_seed(0)
    decoder = build_decoder(config)[0]
    assert hidden_states(decoder, rows(8)[0][None]).shape == (1, 8, 16)
    assert not any("lm_head" in name for name, _ in decoder.named_parameters())


def test_a_head_that_scales_its_logits_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = AutoConfig.for_model("granite", vocab_size=40, intermediate_size=32, logits_scaling=8.0, **sizes)
    config.pad_token_id = None
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="GraniteForCausalLM: its head is not a plain matrix"):
        CausalNetwork(PretrainedCausalConfig(type="pretrained", path=str(tmp_path)))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_heads": 3}, "must divide"),
        ({"num_kv_heads": 3}, "must divide"),
        ({"hidden_size": 12, "num_heads": 4}, "is odd"),
        ({"architecture": "gpt2", "num_kv_heads": 2}, "has no num_kv_heads"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NewCausalConfig(**{**SMALL, **keys})
