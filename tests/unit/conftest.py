"""Fakes that several folders of unit tests share."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.base.code_version import code_version
from assay.inference.protocol import Completion, Message, SamplerError, SamplingParams
from assay.records.run import Run
from assay.training.recipe import recipe_sha256
from tiny_recipe import tiny_recipe

if TYPE_CHECKING:
    from assay.inference.local.local_model import LocalModel
    from assay.models.causal import CausalModel

Reply = Callable[[Sequence[Message]], str | SamplerError]


class ScriptedSampler:
    """Answers by a function of the conversation, and remembers what it was asked."""

    def __init__(self, reply: Reply | str, name: str = "scripted") -> None:
        self.name = name
        self._reply = reply
        self.requests: list[list[Message]] = []

    def generate(self, prompts: Sequence[Sequence[Message]], params: SamplingParams) -> list[Completion | SamplerError]:
        self.requests += [list(prompt) for prompt in prompts]
        texts = [self._reply if isinstance(self._reply, str) else self._reply(prompt) for prompt in prompts]
        return [text if isinstance(text, SamplerError) else Completion(text) for text in texts]

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Vectors of letter counts."""
        return [[text.count("a"), text.count("b")] for text in texts]


@pytest.fixture
def scripted() -> type[ScriptedSampler]:
    """The class, to be made with an answer."""
    return ScriptedSampler


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """As its record says it, before anything was written."""
    recipe = tiny_recipe()
    return Run(
        run_id="r",
        created_s=0.0,
        recipe=recipe,
        recipe_sha256=recipe_sha256(recipe, ""),
        dataset_fingerprint="",
        code_version=code_version(),
        run_dir=str(tmp_path / "r"),
        store_url=str(tmp_path / "store"),
        num_steps=10,
    )


TEXTS = ["def add(a, b):\n    return a + b\n", "class Ledger:\n    def close(self):\n        pass\n"] * 3


@pytest.fixture(scope="session")
def tiny_causal() -> "CausalModel":
    """Random weights, windows of 16 tokens, a byte-level tokenizer that spells everything and begins texts with
    token 1."""
    import torch
    from tokenizers import processors

    from assay.data.dataset.tokens import train_tokenizer
    from assay.models.causal import CausalModel
    from tiny_causal import new_causal_network

    torch.manual_seed(0)
    network = new_causal_network(vocab_size=320, hidden_size=16, num_layers=1, num_heads=2, max_tokens=16)
    tokenizer = train_tokenizer(TEXTS, vocab_size=320)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A $B", special_tokens=[("[CLS]", 1)]
    )
    return CausalModel(network, tokenizer, 16)


@pytest.fixture
def tiny_model(tiny_causal: "CausalModel") -> "LocalModel":
    """The same, ready to be asked."""
    import torch

    from assay.inference.local.local_model import LocalModel

    return LocalModel(tiny_causal, name="tiny", device=torch.device("cpu"))


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., Path]:
    """Write rows as JSONL into the test's folder."""

    def write(name: str, *rows: object) -> Path:
        path = tmp_path / name
        path.write_text("\n".join(json.dumps(row) for row in rows))
        return path

    return write
