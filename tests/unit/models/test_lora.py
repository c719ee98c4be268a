"""Adapters: what they leave, what they train, and that switched off they are not there."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.micro_batches import micro_batch
from agreement.pair_cases import PAIRS
from agreement.tiny_models import save_tiny
from assay.base.errors import ConfigError, DamagedDataError
from assay.models.causal_config import NewCausalConfig, PretrainedCausalConfig, check_rows
from assay.models.exporting import ExportOptions, save_model
from assay.models.lora import adapters_off
from assay.models.token_scores import CausalNetwork
from assay.records.dataset import DatasetManifest
from assay.training.checkpoint.parts import model_state, restore_model
from assay.training.methods.dpo.config import DpoConfig
from assay.training.methods.dpo.method import DpoMethod
from assay.training.methods.reward.config import RewardConfig
from assay.training.methods.reward.method import RewardMethod
from assay.training.reference_model import ReferenceModel, folder_digest
from language_rows import small_model
from preference_rows import pair_row

IDS = torch.arange(1, 9)[None]


def config(**keys: Any) -> NewCausalConfig:
    return NewCausalConfig.model_validate(small_model(**keys))


def network(seed: int = 1, **keys: Any) -> CausalNetwork:
    torch.manual_seed(seed)
    return CausalNetwork(config(**keys))


def disturbed(model: torch.nn.Module) -> Any:
    """Adapters begin at zero; these have learned something."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("keys", [{}, {"architecture": "gpt2", "num_kv_heads": None}])
@pytest.mark.parametrize("targets", [(), ("c_proj", "o_proj")])
def test_only_adapters_are_trained_and_a_configuration_counts_them(
    keys: dict[str, Any], targets: tuple[str, ...]
) -> None:
    chosen = config(**keys, lora={"rank": 3, "targets": targets})
    model = CausalNetwork(chosen)
    trained = {name: item for name, item in model.named_parameters() if item.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    assert chosen.num_parameters() == sum(item.numel() for item in trained.values())
    model(IDS).logprobs.sum().backward()
    assert all(item.grad is not None for item in trained.values())


def test_an_adapter_of_the_head_counts_in_scores_and_has_the_gradient_that_peft_gives_it() -> None:
    model = disturbed(network(lora={"rank": 2, "targets": ("q_proj", "lm_head")}))
    logits = model.network(input_ids=IDS, use_cache=False).logits[:, :-1]
    expected = logits.log_softmax(-1).gather(2, IDS[:, 1:, None])[:, :, 0]
    found = model(IDS).logprobs
    torch.testing.assert_close(found, expected)
    with adapters_off(model):
        assert not torch.allclose(model(IDS).logprobs, found)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    pairs = zip(torch.autograd.grad(found.sum(), trained), torch.autograd.grad(expected.sum(), trained), strict=True)
    for own, of_peft in pairs:
        torch.testing.assert_close(own, of_peft, rtol=1e-4, atol=1e-5)


def test_switched_off_the_model_is_its_base_and_switched_on_again_it_is_not() -> None:
    base, adapted = network(), disturbed(network(lora={"rank": 2}))
    with adapters_off(adapted):
        assert torch.equal(adapted(IDS).logprobs, base(IDS).logprobs)
    assert not torch.allclose(adapted(IDS).logprobs, base(IDS).logprobs)


def test_a_commit_holds_what_is_trained_and_goes_back_to_its_own_base_only() -> None:
    model = disturbed(network(lora={"rank": 2}))
    state = {name: tensor.clone() for name, tensor in model_state(model).items()}
    assert all("lora_" in name for name in state.keys() - {"network.base_sha256"})
    assert len(state) < len(get_model_state_dict(model))
    again = network(lora={"rank": 2})
    restore_model(again, state)
    assert torch.equal(again(IDS).logprobs, model(IDS).logprobs)
    with pytest.raises(DamagedDataError, match="the weights below the adapters have digest"):
        restore_model(network(seed=2, lora={"rank": 2}), state)


def manifest() -> DatasetManifest:
    nothing: dict[str, Any] = {"name": "none"}
    return DatasetManifest.model_construct(**nothing)


@pytest.mark.parametrize("targets", [("query",), ("o_proj", "c_attn")])
def test_a_target_that_matches_nothing_is_refused(targets: tuple[str, ...], tmp_path: Path) -> None:
    wrong = targets[-1]
    message = rf"method\.model\.lora\.targets: no matrix is called '{wrong}'. There are .*o_proj"
    with pytest.raises(ConfigError, match=message):
        check_rows(config(lora={"targets": targets}), manifest(), "method.model")
    network().network.save_pretrained(tmp_path)
    pretrained = PretrainedCausalConfig.model_validate(
        {"type": "pretrained", "path": str(tmp_path), "lora": {"targets": targets}}
    )
    with pytest.raises(ConfigError, match=message):
        check_rows(pretrained, manifest(), "method.model")


def test_a_pretrained_folder_counts_its_adapters(tmp_path: Path) -> None:
    network().network.save_pretrained(tmp_path)
    lora = {"rank": 3}
    folder = {"type": "pretrained", "path": str(tmp_path), "lora": lora}
    assert PretrainedCausalConfig.model_validate(folder).num_parameters() == config(lora=lora).num_parameters()


def test_a_preference_is_held_to_the_model_below_its_adapters(tmp_path: Path) -> None:
    base = save_tiny(LlamaForCausalLM, tmp_path / "base", seed=3)
    of_folder = {"type": "pretrained", "path": str(base)}
    adapted = {"model": {**of_folder, "lora": {"rank": 2}}}
    variants = [
        DpoConfig.model_validate({**adapted, **more})
        for more in ({}, {"reference": {"type": "frozen", "path": str(base)}})
    ]
    torch.manual_seed(0)
    model = disturbed(DpoMethod(variants[0]).build_model())
    batch = micro_batch([pair.row() for pair in PAIRS])
    losses = []
    for config_ in variants:
        method = DpoMethod(config_)
        frozen_models = method.build_frozen_models()
        losses.append(method.loss(model, method.tensors(batch, torch.device("cpu")), frozen_models).sum)
        assert bool(frozen_models) == (config_.reference.path is not None)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=0)
    assert abs(float(losses[0].detach()) - len(PAIRS) * math.log(2)) > 0.01


@pytest.mark.parametrize(
    "keys, targets",
    [
        ({}, ()),
        ({"architecture": "gpt2"}, ("c_attn", "c_fc")),
        ({"tie_embeddings": True}, ("q_proj", "lm_head")),
        ({"architecture": "gpt2", "tie_embeddings": True}, ("c_attn", "lm_head")),
    ],
    ids=["llama", "gpt2", "llama, tied head", "gpt2, tied head"],
)
def test_adapters_leave_added_to_the_weights_below_them(
    keys: dict[str, Any], targets: tuple[str, ...], tmp_path: Path
) -> None:
    keys = {"num_kv_heads": None, "lora": {"rank": 2, "targets": targets}, **keys}
    model = disturbed(network(**keys)).eval()
    with torch.no_grad():
        expected = model(IDS).logprobs
        save_model(model.network, config(**keys), tmp_path / "model", ExportOptions())
        logits = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()(IDS).logits
    seen = logits[:, :-1].log_softmax(-1).gather(2, IDS[:, 1:, None])[:, :, 0]
    assert torch.allclose(seen, expected, atol=2e-5)
    names = load_file(tmp_path / "model" / "model.safetensors").keys()
    assert not [name for name in names if "lora" in name or "base" in name]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # PEFT asks it
@pytest.mark.parametrize("method", ["sft", "reward"])
def test_adapters_leave_alone_and_peft_joins_them_to_their_base(method: str, tmp_path: Path) -> None:
    from peft import PeftModel

    base = save_tiny(LlamaForCausalLM, tmp_path / "base", seed=3)
    tree = {"type": "pretrained", "path": str(base), "lora": {"rank": 2, "targets": ["q_proj", "down_proj"]}}
    options, lengths = ExportOptions(padding=0, adapters="apart"), torch.tensor([IDS.shape[1]])
    torch.manual_seed(2)
    with torch.no_grad():
        if method == "reward":
            whole = RewardConfig.model_validate({"type": "reward", "model": tree})
            own = disturbed(RewardMethod(whole).build_model()).eval()
            expected = own(IDS, lengths)
            RewardMethod(whole).save_exported(own, tmp_path / "adapters", options)
            below = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
            seen = PeftModel.from_pretrained(below, tmp_path / "adapters").eval()(IDS).logits[:, 0]
        else:
            own = disturbed(CausalNetwork(PretrainedCausalConfig.model_validate(tree))).eval()
            expected = own(IDS).logprobs
            save_model(own.network, PretrainedCausalConfig.model_validate(tree), tmp_path / "adapters", options)
            below = AutoModelForCausalLM.from_pretrained(base)
            logits = PeftModel.from_pretrained(below, tmp_path / "adapters").eval()(IDS).logits
            seen = logits[:, :-1].log_softmax(-1).gather(2, IDS[:, 1:, None])[:, :, 0]
    assert torch.allclose(seen, expected, atol=1e-6)
    assert str(tmp_path) not in (tmp_path / "adapters" / "adapter_config.json").read_text()


def test_adapters_beside_weights_that_nobody_else_has_do_not_leave_alone(tmp_path: Path) -> None:
    model = network(lora={"rank": 2})
    with pytest.raises(ConfigError, match="random and come from the run's seed"):
        save_model(model.network, config(lora={"rank": 2}), tmp_path, ExportOptions(adapters="apart"))


def test_a_run_with_adapters_is_the_reference_that_an_export_of_it_is(tmp_path: Path) -> None:
    base = save_tiny(LlamaForCausalLM, tmp_path / "base", seed=3)
    tree = {"type": "pretrained", "path": str(base), "lora": {"rank": 2}}
    adapted = PretrainedCausalConfig.model_validate(tree)
    torch.manual_seed(2)
    own = disturbed(CausalNetwork(adapted)).eval()
    with torch.no_grad():
        expected = own(IDS).logprobs
    torch.manual_seed(2)
    options = disturbed(CausalNetwork(adapted))
    save_model(options.network, adapted, tmp_path / "exported", ExportOptions())
    reference, folder = ReferenceModel(own, name="run@1"), str(tmp_path / "exported")
    assert reference.digest == folder_digest(folder) != folder_digest(str(base))
    rows = pa.Table.from_pylist([pair_row(np.random.default_rng(row), 4) for row in range(3)])
    message, by_folder = (
        item.of_pairs(rows, tokens_at_once=100) for item in (reference, ReferenceModel.from_folder(folder))
    )
    np.testing.assert_array_equal(message[0], by_folder[0])
    with torch.no_grad():
        torch.testing.assert_close(own(IDS).logprobs, expected, rtol=1e-4, atol=1e-5)
