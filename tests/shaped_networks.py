"""Language models of each shape, their weights drawn wide: what is likely differs from place to place."""

from functools import lru_cache
from typing import Any

import torch

from assay.models.causal import build_causal
from assay.models.causal_config import LoraConfig, NewCausalConfig

VOCAB_SIZE = 48
MAX_TOKENS = 160

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama", "num_kv_heads": 2},
    "qwen3": {"architecture": "qwen3", "num_kv_heads": 1},
    "gpt2": {"architecture": "gpt2", "tie_embeddings": True},
}


@lru_cache(maxsize=8)
def shaped(shape: str) -> Any:
    """One network of a shape, for all tests; `lora-llama` has adapters that say something."""
    torch.manual_seed(11)
    lora = LoraConfig(rank=4) if shape.startswith("lora-") else None
    config = NewCausalConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=64,
        max_tokens=MAX_TOKENS, lora=lora, **SHAPES[shape.removeprefix("lora-")],
    )  # fmt: skip
    network = build_causal(config)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.25)
    return network.eval()
