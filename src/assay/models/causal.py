"""Causal language models: new ones from a configuration, or Hugging Face checkpoint folders.

A folder is what `save_pretrained` writes, with `tokenizer.json` if texts are generated.
"""

from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from assay.data.dataset.checkpoint_tokens import check_embeddings, configured_end_ids
from assay.data.dataset.tokens import load_tokenizer
from assay.models.causal_config import LONGEST, NewCausalConfig, PretrainedCausalConfig
from assay.models.config import checkpoint_path
from assay.models.lora import attach_adapters
from assay.models.pretrained import CAUSAL, declared_kind, load_config, load_pretrained

_OPTIONS = MappingProxyType({"dtype": torch.float32, "attn_implementation": "sdpa"})


class CausalModel(NamedTuple):
    """A language model with its tokenizer."""

    network: Any
    """`input_ids -> logits`, a Hugging Face model."""
    tokenizer: Tokenizer
    max_tokens: int
    """Longest sequence."""


def load_causal(path: str) -> CausalModel:
    """Load a checkpoint folder for inference; `package:NAME/FOLDER` is one in a Python package."""
    folder = checkpoint_path(path)
    return causal_model(load_pretrained(CAUSAL, folder), load_tokenizer(folder), where=path)


def causal_model(network: Any, tokenizer: Tokenizer, *, where: str = "the model") -> CausalModel:
    """Return a transformers model with its tokenizer, for inference; `where` names them in errors."""
    check_embeddings(tokenizer, network.get_input_embeddings().num_embeddings, where=where)
    return CausalModel(network.eval(), tokenizer, longest_sequence(network.config))


def end_ids(network: Any) -> tuple[int, ...]:
    """Return the end tokens of the model's configurations; chat models often have several."""
    named = [getattr(network.config, "eos_token_id", None)]
    named.append(getattr(getattr(network, "generation_config", None), "eos_token_id", None))
    ends = [end for eos in named for end in (eos if isinstance(eos, list) else [eos])]
    return tuple(dict.fromkeys(end for end in ends if end is not None))


def longest_sequence(config: Any) -> int:
    """Return the longest sequence of a transformers configuration."""
    return int(next((getattr(config, name) for name in LONGEST if hasattr(config, name)), 1024))


def build_causal(config: NewCausalConfig | PretrainedCausalConfig) -> Any:
    """Return the Hugging Face model to train, in float32: `input_ids, position_ids -> logits`."""
    if isinstance(config, NewCausalConfig):
        network = AutoModelForCausalLM.from_config(_architecture(config), attn_implementation="sdpa")
    else:
        network = load_pretrained(CAUSAL, checkpoint_path(config.path), **_OPTIONS)
    return _prepared(network, config)


def frozen_base(config: NewCausalConfig | PretrainedCausalConfig) -> Any:
    """Return the model below adapters, for any number of `adapted` ones."""
    return build_causal(config.model_copy(update={"lora": None, "checkpoint_activations": False})).requires_grad_(False)


def adapted(base: Any, config: NewCausalConfig | PretrainedCausalConfig) -> Any:
    """Return a model with adapters of its own that shares the weights of a frozen one."""
    return _prepared(deepcopy(base, {id(weight): weight for weight in base.parameters()}), config)


def build_decoder(config: NewCausalConfig | PretrainedCausalConfig) -> tuple[Any, nn.Linear | None]:
    """Return the model without its head, and the reward head if its folder holds one."""
    if isinstance(config, NewCausalConfig):
        network = AutoModel.from_config(_architecture(config), attn_implementation="sdpa")
        return _prepared(network, config), None
    folder = checkpoint_path(config.path)
    network = load_pretrained(declared_kind(folder), folder, **_OPTIONS)
    return _prepared(network.base_model, config), getattr(network, "score", None)


def _prepared(network: Any, config: NewCausalConfig | PretrainedCausalConfig) -> Any:
    if config.lora is not None:
        attach_adapters(network, config.lora)
    if config.checkpoint_activations:
        name = "activation_checkpointing_enable"  # renamed in newer versions of transformers
        enable = getattr(network, name, None) or network.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    return network


def save_configuration(
    config: NewCausalConfig | PretrainedCausalConfig, folder: Path, *, ends: tuple[int, ...]
) -> None:
    """Write the `config.json` of the exported model; `ends`: end tokens besides those that the model names."""
    if isinstance(config, NewCausalConfig):
        found = _architecture(config)
    else:
        found = load_config(checkpoint_path(config.path), CAUSAL)
        ends = (*ends, *configured_end_ids(checkpoint_path(config.path)))
    found.eos_token_id = list(dict.fromkeys(ends)) or None
    found.save_pretrained(folder)


def _architecture(config: NewCausalConfig) -> Any:
    sizes = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": config.max_tokens,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_dropout": 0.0,
        "use_cache": False,
        # Special tokens are the dataset's.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if config.architecture == "gpt2":
        sizes |= {"n_inner": config.intermediate_size, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        del sizes["attention_dropout"]
    else:
        sizes |= {
            "intermediate_size": config.intermediate_size,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.hidden_size // config.num_heads,
        }
    return AutoConfig.for_model(config.architecture, **sizes)
