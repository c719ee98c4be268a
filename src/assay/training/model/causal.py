"""Causal language models with their tokenizers, from any Hugging Face folder.

A folder is what `save_pretrained` writes, with `tokenizer.json` beside it: the form in which checkpoints of
language models travel between tools.
"""

from typing import Any, NamedTuple

from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as hf_logging

from assay.base.errors import ConfigError
from assay.data.dataset.tokens import load_tokenizer
from assay.training.model.encoder import checkpoint_path


class CausalModel(NamedTuple):
    """A language model and the tokenizer that it was trained with."""

    network: Any
    """`input_ids -> logits`, a Hugging Face model."""
    tokenizer: Tokenizer
    max_tokens: int
    """Longest sequence that it takes."""


def load_causal(path: str) -> CausalModel:
    """The model in a checkpoint folder, ready to be asked; `package:NAME/FOLDER` is one in a Python package."""
    folder = checkpoint_path(path)
    hf_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        network = AutoModelForCausalLM.from_pretrained(folder, config=config, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: not a causal language model: {str(error).splitlines()[0]}") from error
    tokenizer = load_tokenizer(folder)
    longest = next(
        (getattr(config, name) for name in ("max_position_embeddings", "n_positions") if hasattr(config, name)),
        1024,
    )
    return CausalModel(network.eval(), tokenizer, int(longest))
