"""Language models small enough to keep their gradients in a file, the same on every machine.

Weights come from NumPy's oldest generator, whose stream never changes, so a golden number needs none beside it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from transformers.models.llama.configuration_llama import LlamaConfig

VOCABULARY = 32
PAD, END = 0, 1


def save_tiny(kind: Any, folder: Path, *, seed: int, tied: bool = False, head_dim: int = 4) -> Path:
    """A Llama of 1,250 weights, of one of transformers' classes, as a checkpoint folder."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=2 * head_dim, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64, tie_word_embeddings=tied, pad_token_id=PAD,
        bos_token_id=END, eos_token_id=END, num_labels=1,
    )  # fmt: skip
    model, draws = kind(config), np.random.RandomState(seed)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            drawn = torch.from_numpy(draws.standard_normal(tuple(weight.shape)))
            weight.copy_(1 + 0.1 * drawn if weight.ndim == 1 else 0.4 * drawn)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each number below `VOCABULARY`, for trainers that will not begin without a tokenizer."""
    words = Tokenizer(WordLevel({f"t{number}": number for number in range(VOCABULARY)}, unk_token="t2"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=f"t{PAD}", eos_token=f"t{END}", unk_token="t2")
