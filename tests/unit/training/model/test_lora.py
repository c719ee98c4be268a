"""Adapters: what they leave, what they train, and that switched off they are not there."""

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.micro_batches import micro_batch
from agreement.pair_cases import PAIRS
from agreement.tiny_models import save_tiny
from assay.base.errors import ConfigError, DamagedDataError
from assay.records.dataset import DatasetManifest
from assay.training.checkpoint.parts import model_state, restore_model
from assay.training.methods.dpo.config import DpoConfig
from assay.training.methods.dpo.method import DpoMethod
from assay.training.model.causal_config import NewCausalConfig, PretrainedCausalConfig, check_rows
from assay.training.model.lora import adapters_off
from assay.training.model.token_scores import CausalNetwork
from language_rows import small_model

IDS = torch.arange(1, 9)[None]


@pytest.fixture
def peft(requires: Callable[[str, bool, str], None]) -> None:
    found = importlib.util.find_spec("peft") is not None
    requires(
        "peft", found, "not installed here (make test-lora runs these tests in an environment that has it)"
    )


def config(**keys: Any) -> NewCausalConfig:
    return NewCausalConfig.model_validate(small_model(**keys))


def network(seed: int = 1, **keys: Any) -> CausalNetwork:
    torch.manual_seed(seed)
    return CausalNetwork(config(**keys))


def disturbed(model: CausalNetwork) -> CausalNetwork:
    """Adapters begin at zero; these have learned something."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.usefixtures("peft")
@pytest.mark.parametrize("keys", [{}, {"architecture": "gpt2", "num_kv_heads": None}])
@pytest.mark.parametrize("targets", [(), ("c_proj", "o_proj")])
def test_only_adapters_are_trained_and_a_configuration_counts_them(
    keys: dict[str, Any], targets: tuple[str, ...]
) -> None:
    chosen = config(**keys, lora={"rank": 3, "targets": targets})
    model = CausalNetwork(chosen)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    assert chosen.num_parameters() == sum(each.numel() for each in trained.values())
    model(IDS).log_probs.sum().backward()
    assert all(each.grad is not None for each in trained.values())


@pytest.mark.usefixtures("peft")
def test_switched_off_the_model_is_its_base_and_switched_on_again_it_is_not() -> None:
    base, adapted = network(), disturbed(network(lora={"rank": 2}))
    with adapters_off(adapted):
        assert torch.equal(adapted(IDS).log_probs, base(IDS).log_probs)
    assert not torch.allclose(adapted(IDS).log_probs, base(IDS).log_probs)


@pytest.mark.usefixtures("peft")
def test_a_commit_holds_what_is_trained_and_goes_back_to_its_own_base_only() -> None:
    model = disturbed(network(lora={"rank": 2}))
    state = {name: tensor.clone() for name, tensor in model_state(model).items()}
    assert all("lora_" in name for name in state.keys() - {"network.base_sha256"})
    assert len(state) < len(get_model_state_dict(model))
    again = network(lora={"rank": 2})
    restore_model(again, state)
    assert torch.equal(again(IDS).log_probs, model(IDS).log_probs)
    with pytest.raises(DamagedDataError, match="the weights below the adapters have digest"):
        restore_model(network(seed=2, lora={"rank": 2}), state)


def manifest() -> DatasetManifest:
    nothing: dict[str, Any] = {"name": "none"}
    return DatasetManifest.model_construct(**nothing)


@pytest.mark.parametrize("targets", [("query",), ("o_proj", "c_attn")])
def test_a_target_that_matches_nothing_is_refused(targets: tuple[str, ...], tmp_path: Path) -> None:
    wrong = targets[-1]
    said = rf"method\.model\.lora\.targets: no matrix is called '{wrong}'. There are .*o_proj"
    with pytest.raises(ConfigError, match=said):
        check_rows(config(lora={"targets": targets}), manifest(), "method.model")
    network().network.save_pretrained(tmp_path)
    pretrained = PretrainedCausalConfig.model_validate(
        {"type": "pretrained", "path": str(tmp_path), "lora": {"targets": targets}}
    )
    with pytest.raises(ConfigError, match=said):
        check_rows(pretrained, manifest(), "method.model")


def test_a_pretrained_folder_counts_its_adapters(tmp_path: Path) -> None:
    network().network.save_pretrained(tmp_path)
    lora = {"rank": 3}
    folder = {"type": "pretrained", "path": str(tmp_path), "lora": lora}
    assert PretrainedCausalConfig.model_validate(folder).num_parameters() == config(lora=lora).num_parameters()


@pytest.mark.usefixtures("peft")
def test_a_preference_is_held_to_the_model_below_its_adapters(tmp_path: Path) -> None:
    base = save_tiny(LlamaForCausalLM, tmp_path / "base", seed=3)
    of_folder = {"type": "pretrained", "path": str(base)}
    adapted = {"model": {**of_folder, "lora": {"rank": 2}}}
    ways = [
        DpoConfig.model_validate({**adapted, **more})
        for more in ({}, {"reference": {"type": "frozen", "path": str(base)}})
    ]
    torch.manual_seed(0)
    model = disturbed(DpoMethod(ways[0]).build_model())
    batch = micro_batch([pair.row() for pair in PAIRS])
    losses = []
    for config_ in ways:
        method = DpoMethod(config_)
        helpers = method.build_helpers()
        losses.append(method.loss(model, method.tensors(batch, torch.device("cpu")), helpers).sum)
        assert bool(helpers) == (config_.reference.path is not None)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=0)
    assert abs(float(losses[0].detach()) - len(PAIRS) * math.log(2)) > 0.01
