"""LoRA adapters by PEFT: only the adapters are trained, and the base weights are frozen.

A commit holds the adapters and the digest of the base (`base_sha256`, a buffer). Loading a commit into a model
with another base raises an error. With the adapters disabled, the model is its base.
"""

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from assay.base.errors import ConfigError, DamagedDataError
from assay.base.shapes import Float
from assay.models.causal_config import NO_PEFT, LoraConfig
from assay.models.described import builds_without_numbers

BASE = "base_sha256"


def attach_adapters(network: Any, config: LoraConfig) -> None:
    """Add adapters to a transformers model, initialize them, and freeze all other weights."""
    try:
        from peft import LoraConfig as PeftLoraConfig
        from peft import inject_adapter_in_model
    except ImportError as error:
        raise ConfigError(NO_PEFT.format(where="method.model")) from error
    names = [name for name, module in network.named_modules() if config.adapts(name)]
    network.register_buffer(BASE, _digest_of(network))
    adapters = PeftLoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=names,
        fan_in_fan_out=network.config.model_type == "gpt2",  # gpt2 stores its matrices transposed
    )
    try:
        with warnings.catch_warnings():
            # The adapter of a head that is the embedding changes the head alone; `merge_adapters` gives it a matrix.
            warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True` and a tied layer")
            # PEFT corrects this setting for each matrix: gpt2's head is not transposed.
            warnings.filterwarnings("ignore", "fan_in_fan_out is set to True but the target module")
            inject_adapter_in_model(adapters, network)
    except ValueError as error:  # not checked before if no header lists the names
        raise ConfigError(f"method.model.lora.targets: {str(error).splitlines()[0]}") from error
    network.register_load_state_dict_post_hook(_check_base(network))


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Disable the adapters within this context, so that the model is its own reference."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    was_off = [layer.disable_adapters for layer in layers]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer, before in zip(layers, was_off, strict=True):
            layer._disable_adapters = before


def head_weight(head: Any) -> Float[Tensor, "entry width"]:
    """Return the matrix of a language model's head, with its adapter if it has one that is on."""
    weight: Tensor = head.weight
    if not hasattr(head, "lora_A") or head.disable_adapters:
        return weight
    (adapter,) = head.lora_A
    scale: float = head.scaling[adapter]
    change: Tensor = head.lora_B[adapter].weight @ head.lora_A[adapter].weight
    return weight + scale * change


def merge_adapters(model: nn.Module) -> None:
    """Merge a model's adapters, if there are any, into its matrices and remove them."""
    bases: list[Any] = [module for module in model.modules() if BASE in module._buffers]
    if not bases:
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    for network in bases:
        _untie(network)
    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()
            model.set_submodule(name, module.get_base_layer())
    for network in bases:
        del network._buffers[BASE]


def _untie(network: Any) -> None:
    """Give a head that is the embedding a matrix of its own if one of them has an adapter."""
    head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
    has_adapter = hasattr(head, "base_layer") or hasattr(embedding, "base_layer")
    if head is None or not has_adapter or head.weight is not embedding.weight:
        return
    getattr(head, "base_layer", head).weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    network.config.tie_word_embeddings = False


def base_sha256(model: nn.Module) -> str | None:
    """Return the digest of the weights below a model's adapters; None if it has none."""
    found = [buffer for name, buffer in model.named_buffers() if name.rpartition(".")[2] == BASE]
    return bytes(found[0].tolist()).hex() if found else None


def _digest_of(network: nn.Module) -> Any:
    digest = hashlib.sha256()
    if builds_without_numbers():
        return torch.tensor(list(digest.digest()), dtype=torch.uint8)
    for name, weight in sorted(network.named_parameters()):
        digest.update(f"{name}:{tuple(weight.shape)};".encode())
        digest.update(weight.detach().contiguous().cpu().view(torch.uint8).flatten().numpy().data)
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)


def _check_base(network: nn.Module) -> Any:
    own = network.get_buffer(BASE).clone()

    def check(*_: object) -> None:
        loaded = network.get_buffer(BASE).cpu()
        if not torch.equal(loaded, own):
            raise DamagedDataError(
                f"the weights below the adapters have digest {bytes(own.tolist()).hex()[:12]}…, those that the "
                f"commit was trained on {bytes(loaded.tolist()).hex()[:12]}…. The folder behind method.model "
                "changed; restore it."
            )

    return check
