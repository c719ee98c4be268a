"""New causal language models of any size: GPT-2's architecture, with weights drawn from torch's generator."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel


def new_causal_network(*, vocab_size: int, hidden_size: int, num_layers: int, num_heads: int, max_tokens: int) -> Any:
    """No dropout; its text begins with token 1, `[CLS]` of the tokenizers that assay trains."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab_size,
            n_positions=max_tokens,
            n_embd=hidden_size,
            n_layer=num_layers,
            n_head=num_heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=1,
            eos_token_id=1,
        )
    )


def save_causal(folder: Path, network: Any, tokenizer: Tokenizer) -> None:
    """Write a checkpoint folder that every tool loads."""
    network.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
