"""Small language models and scorers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from assay.data.dataset.tokens import train_tokenizer
from assay.training.model.causal import CausalModel, new_causal_network
from assay.training.model.config import NewCausalConfig
from assay.training.model.local_model import LocalModel

TEXTS = ["def add(a, b):\n    return a + b\n", "class Ledger:\n    def close(self):\n        pass\n"] * 3


@pytest.fixture(scope="session")
def tiny_causal() -> CausalModel:
    """Random weights, windows of 16 tokens, a byte-level tokenizer that spells everything."""
    torch.manual_seed(0)
    config = NewCausalConfig(vocab_size=320, hidden_size=16, num_layers=1, num_heads=2, max_tokens=16)
    return CausalModel(new_causal_network(config), train_tokenizer(TEXTS, vocab_size=320), 16)


@pytest.fixture
def tiny_model(tiny_causal: CausalModel) -> LocalModel:
    """The same, ready to be asked."""
    return LocalModel(tiny_causal, name="tiny", device=torch.device("cpu"))


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., Path]:
    """Write rows as JSONL into the test's folder."""
    import json

    def write(name: str, *rows: object) -> Path:
        path = tmp_path / name
        path.write_text("\n".join(json.dumps(row) for row in rows))
        return path

    return write
