"""A base model of language for the API, `talker`, which every method of language trains; and rows for each.

A question is some words; the answer that is preferred is its first word, and the grader pays for that.
"""

import json
import random
from pathlib import Path
from typing import Any

import yaml

from assay.data.dataset.tokens import train_tokenizer

WORDS = ("alpha", "beta", "gamma", "delta", "return", "yield", "import", "class")
MARKS = ("<|im_start|>", "<|im_end|>")
GRADER = {
    "type": "string_check",
    "name": "first word",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.wanted }}",
    "operation": "like",
}
SIZES = {"vocab_size": 300, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_tokens": 128}
METHODS = ("supervised", "dpo", "reward_model", "reinforcement")
NEW = {"type": "new", **SIZES, "intermediate_size": 32}
FOLDER = {"type": "pretrained", "path": "talker"}
RECIPES: dict[str, dict[str, Any]] = {
    "supervised": {"type": "sft", "train_on": "spans", "model": NEW},
    "dpo": {"type": "dpo", "model": FOLDER},
    "reward_model": {"type": "reward", "model": NEW},
    "reinforcement": {"type": "grpo", "model": FOLDER, "group_size": 4, "sampling": {"max_tokens": 4}},
}


def write_talker(models: Path, *, with_weights: bool = False) -> Path:
    """`talker.yaml`, and the folder that it names: tokenizer, and weights where anybody trains."""
    talker = models / "talker"
    talker.mkdir(parents=True, exist_ok=True)
    texts = [message["content"] for method in METHODS for row in rows(method, 20) for message in _messages(row)]
    tokenizer = train_tokenizer(texts, vocab_size=SIZES["vocab_size"], special=MARKS)
    tokenizer.save(str(talker / "tokenizer.json"))
    (talker / "tokenizer_config.json").write_text(json.dumps({"eos_token": MARKS[1], "pad_token": "[PAD]"}))
    if with_weights:
        end = tokenizer.token_to_id(MARKS[1])
        assert end is not None
        _save_weights(talker, end)
    trainer = {"commit_every": 4, "evaluate_every": 4, "optimizer": {"learning_rate": 3e-3}}
    loader = {"lanes": 4, "global_batch_size": 16, "window_rows": 16, "threads": 1}
    methods = {
        name: {
            "recipe": {"loader": loader, "method": method, "trainer": trainer},
            "max_tokens": 96,
            "validation_fraction": 0.2,
        }
        for name, method in RECIPES.items()
    }
    model = {"tokenizer": "talker", "chat_template": "chatml", "methods": methods}
    (models / "talker.yaml").write_text(yaml.safe_dump(model))
    return models


def rows(method: str, number: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """As the hosted API asks for them, of its guides."""
    rng = random.Random(f"{method}{seed}")
    return [_row(method, rng.sample(WORDS, 4), rng) for _ in range(number)]


def lines(of: list[dict[str, Any]]) -> bytes:
    """The rows as a file."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in of)


def _row(method: str, words: list[str], rng: random.Random) -> dict[str, Any]:
    request = {"role": "user", "content": f"{' '.join(words)} {rng.randrange(10_000)}"}
    good, bad = ({"role": "assistant", "content": word} for word in words[:2])
    if method == "supervised":
        return {"messages": [request, good]}
    if method == "reinforcement":
        return {"messages": [request], "wanted": words[0]}
    return {"input": {"messages": [request]}, "preferred_output": [good], "non_preferred_output": [bad]}


def _messages(row: dict[str, Any]) -> list[dict[str, str]]:
    if "messages" in row:
        return list(row["messages"])
    return [*row["input"]["messages"], *row["preferred_output"], *row["non_preferred_output"]]


def _save_weights(folder: Path, end: int) -> None:
    import torch

    from tiny_causal import new_causal_network

    torch.manual_seed(0)
    sizes = {name: size for name, size in SIZES.items() if name != "max_tokens"}
    network = new_causal_network(**sizes, max_tokens=SIZES["max_tokens"])
    network.config.eos_token_id = end
    network.generation_config.eos_token_id = end
    network.save_pretrained(folder)
