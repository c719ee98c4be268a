"""What a reference says of pairs is what plain transformers say of each sequence alone, in whatever batches."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from assay.base.errors import ConfigError
from assay.models.causal_config import NewCausalConfig
from assay.models.lora import BASE
from assay.models.token_scores import CausalNetwork
from assay.records.dataset import DatasetManifest, LengthProfile
from assay.training import reference_model as reference_module
from assay.training.checkpoint.parts import model_state
from assay.training.checkpoint.saver import weights_digest
from assay.training.reference_model import ReferenceModel, folder_digest
from preference_rows import VOCABULARY, pair_row
from tiny_causal import new_causal_network


def small(seed: int = 3) -> CausalNetwork:
    torch.manual_seed(seed)
    return CausalNetwork(
        NewCausalConfig(
            architecture="gpt2", vocab_size=VOCABULARY, hidden_size=16, num_layers=1, num_heads=2,
            intermediate_size=32, max_tokens=32,
        )
    )  # fmt: skip


def of_completion(network: CausalNetwork, ids: list[int], prompt_tokens: int) -> float:
    """Alone, from the logits that transformers give."""
    tokens = torch.tensor([ids])
    with torch.no_grad():
        logits = network.network(tokens).logits[0, :-1].double()
    message = logits.log_softmax(-1)[torch.arange(len(ids) - 1), tokens[0, 1:]]
    return float(message[prompt_tokens - 1 :].sum())


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), num_rows=st.integers(1, 12), tokens_at_once=st.integers(1, 200))
def test_each_sequence_is_scored_as_if_alone(seed: int, num_rows: int, tokens_at_once: int) -> None:
    network = small()
    rng = np.random.default_rng(seed)
    rows = [pair_row(rng, int(rng.integers(2, 7))) for _ in range(num_rows)]
    passes: list[torch.Size] = []
    network.register_forward_pre_hook(lambda _, inputs: passes.append(inputs[0].shape))
    message = ReferenceModel(network, name="x").of_pairs(pa.Table.from_pylist(rows), tokens_at_once=tokens_at_once)
    for side, of_row in (("input_ids", message[0]), ("rejected_ids", message[1])):
        alone = [of_completion(network, row[side], row["prompt_tokens"]) for row in rows]
        np.testing.assert_allclose(of_row, alone, rtol=1e-5, atol=1e-5)
    assert sum(sequences for sequences, _ in passes) == 2 * num_rows
    assert all(sequences == 2 or sequences * width <= tokens_at_once for sequences, width in passes)


def test_rows_of_like_length_fill_a_pass() -> None:
    network = small()
    rows = [pair_row(np.random.default_rng(row), 4) for row in range(8)]
    passes: list[torch.Size] = []
    network.register_forward_pre_hook(lambda _, inputs: passes.append(inputs[0].shape))
    width = len(rows[0]["input_ids"])
    ReferenceModel(network, name="x").of_pairs(pa.Table.from_pylist(rows), tokens_at_once=2 * 3 * width)
    assert passes == [(6, width), (6, width), (4, width)]


def test_a_folder_and_its_network_are_one_model_by_digest(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = new_causal_network(vocab_size=VOCABULARY, hidden_size=16, num_layers=1, num_heads=2, max_tokens=32)
    network.save_pretrained(tmp_path)
    digest = ReferenceModel.from_folder(str(tmp_path)).digest
    assert digest == folder_digest(str(tmp_path))
    with torch.no_grad():
        network.transformer.ln_f.bias[0] += 1
    network.save_pretrained(tmp_path)
    assert digest != folder_digest(str(tmp_path))


def test_a_network_is_named_by_the_digest_of_its_weights() -> None:
    network = small()
    reference = ReferenceModel(network, name="x")
    assert (reference.name, reference.digest) == ("x", weights_digest(model_state(network)))


def test_what_says_nothing_of_tokens_is_no_reference() -> None:
    with pytest.raises(ConfigError, match="x: not a language model"):
        ReferenceModel(nn.Linear(2, 2), name="x")


def manifest(*, max_token_id: int = 1, longest: int = 1) -> DatasetManifest:
    longest_row: dict[str, Any] = {"max": longest}
    known: dict[str, Any] = {"name": "pairs", "max_token_id": max_token_id}
    return DatasetManifest.model_construct(**known, lengths=LengthProfile.model_construct(**longest_row))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"max_token_id": VOCABULARY - 1, "longest": 32}, None),
        ({"max_token_id": VOCABULARY}, f"x: its vocabulary has {VOCABULARY} tokens.*'pairs' holds token 16"),
        ({"longest": 33}, "x: it takes 32 tokens, but the longest row of dataset 'pairs' has 33"),
    ],
)
def test_rows_that_the_model_cannot_take_are_refused(rows: dict[str, int], message: str | None) -> None:
    reference = ReferenceModel(small(), name="x")
    if message is None:
        reference.check_rows(manifest(**rows))
        return
    with pytest.raises(ConfigError, match=message):
        reference.check_rows(manifest(**rows))


def test_a_model_that_sets_no_bound_takes_rows_of_any_length() -> None:
    network = small()
    network.network.config = SimpleNamespace()
    ReferenceModel(network, name="x").check_rows(manifest(longest=10**6))


def test_adapters_are_merged_before_the_weights_get_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is that of an export. The merge itself is PEFT's: here the base's digest goes, and no more."""
    merged: list[nn.Module] = []

    def merge(model: nn.Module) -> None:
        merged.append(model)
        del model.network._buffers[BASE]  # type: ignore[union-attr]

    monkeypatch.setattr(reference_module, "merge_adapters", merge)
    plain, adapted = small(), small().requires_grad_(False)
    adapted.network.register_buffer(BASE, torch.zeros(32, dtype=torch.uint8))
    assert ReferenceModel(adapted, name="x").digest == ReferenceModel(plain, name="x").digest
    assert merged == [adapted]


def test_a_reference_is_asked_in_evaluation_mode() -> None:
    network = small().train()
    ReferenceModel(network, name="x")
    assert not any(module.training for module in network.modules())


@given(widths=st.lists(st.integers(1, 3), min_size=1, max_size=80), tokens_at_once=st.integers(1, 60))
def test_rows_are_taken_shortest_first_and_those_of_one_length_in_their_order(widths, tokens_at_once) -> None:
    found = reference_module._batches(np.array(widths, np.int64), tokens_at_once)
    used = [int(row) for batch in found for row in batch]
    assert used == sorted(range(len(widths)), key=widths.__getitem__)
