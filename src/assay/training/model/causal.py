"""Causal language models with their tokenizers, from any Hugging Face folder.

A folder is what `save_pretrained` writes, with `tokenizer.json` beside it: the form in which checkpoints of
language models travel between tools.
"""

from typing import Any, NamedTuple

from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as hf_logging

from assay.data.dataset.tokens import load_tokenizer
from assay.training.model.config import checkpoint_path
from assay.training.model.encoder import from_folder

CAUSAL = "a causal language model"


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
    config = from_folder(AutoConfig, folder, CAUSAL)
    network = from_folder(AutoModelForCausalLM, folder, CAUSAL, config=config)
    tokenizer = load_tokenizer(folder)
    longest = next(
        (getattr(config, name) for name in ("max_position_embeddings", "n_positions") if hasattr(config, name)),
        1024,
    )
    return CausalModel(network.eval(), tokenizer, int(longest))
