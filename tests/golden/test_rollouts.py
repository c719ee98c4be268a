"""Rollouts of the local engine as they once were: no change may move a token or a bit of a logprob unnoticed.

On the kind of processor that wrote `rollouts.json`, and with its version of torch, every bit is equal. Elsewhere
logprobs may differ by 1e-4 up to the first other token. A change of the arithmetic that is meant writes the file with

    ASSAY_RENEW_GOLDEN=1 .venv/bin/pytest -m '' tests/golden/test_rollouts.py
"""

import base64
import copy
import json
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from assay.data.dataset.tokens import train_tokenizer
from assay.elastic.processor import processor_here
from assay.inference.local.generator import BatchInvariance, Generator
from assay.inference.protocol import SamplingParams
from assay.inference.rollout import Prompt, Rollout
from assay.records.processor import Processor
from shaped_networks import MAX_TOKENS, VOCAB_SIZE, shaped

FILE = Path(__file__).with_name("rollouts.json")
LENGTHS = (1, 2, 31, 32, 33, 40, 64, 65, 90, 7)
ENDS = {5, 6}


class Case(NamedTuple):
    """A generation: of `samples` completions of each of `lengths`."""

    shape: str
    params: SamplingParams
    lengths: tuple[int, ...] = LENGTHS
    samples: int = 2
    slots: int = 64
    batch_invariance: BatchInvariance | None = None
    """Instead of the one that is found."""


def sampling(max_tokens: int = 24, **keys: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "max_tokens": max_tokens, **keys})


CASES = {
    "llama, four slots' worth of groups": Case("llama", sampling(), samples=8, slots=16, lengths=LENGTHS[:5]),
    "llama, top_p": Case("llama", sampling(top_p=0.9, temperature=0.8)),
    "llama, top_k and top_p": Case("llama", sampling(top_k=7, top_p=0.8)),
    "llama, greedy": Case("llama", SamplingParams(max_tokens=30), slots=16),
    "llama, one token": Case("llama", sampling(1)),
    "llama, long": Case("llama", sampling(64), samples=1),
    "qwen3": Case("qwen3", sampling(40), slots=16),
    "gpt2": Case("gpt2", sampling(40), slots=16),
    "a window": Case("window", sampling(40)),
    "layers of two kinds": Case("two kinds", sampling(40)),
    "stop strings": Case("talker", sampling(40, stop=("ab", " b")), samples=6, slots=16, lengths=(9, 4, 33)),
    "a tile of one size": Case("llama", sampling(), slots=64, batch_invariance=BatchInvariance.FIXED_SIZE),
    "each group alone": Case(
        "llama", sampling(stop=()), samples=20, lengths=(7, 33), batch_invariance=BatchInvariance.GROUP_ONLY
    ),
    "rows that know of each other": Case(
        "gossip", sampling(), samples=20, lengths=(7, 33), batch_invariance=BatchInvariance.GROUP_ONLY
    ),
}


class Gossip(nn.Module):
    """A head whose logits know a little of who else is in the batch."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head, self.weight = head, head.weight

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Not by much."""
        return self.head(states + 1e-3 * states.mean(dim=0, keepdim=True))


@cache
def tokenizer() -> Tokenizer:
    return train_tokenizer(["ab ba " * 9], vocab_size=300)


@cache
def network_of(shape: str) -> Any:
    if shape in ("window", "two kinds"):
        torch.manual_seed(3)
        sizes = {
            "vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": MAX_TOKENS,
            "sliding_window": 20, "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.25,
        }  # fmt: skip
        if shape == "two kinds":
            sizes |= {"use_sliding_window": True, "max_window_layers": 1}
        config = AutoConfig.for_model("mistral" if shape == "window" else "qwen2", **sizes)
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    if shape == "gossip":
        gossiping = copy.deepcopy(shaped("llama"))
        gossiping.lm_head = Gossip(gossiping.lm_head)
        return gossiping
    if shape == "talker":
        network = copy.deepcopy(shaped("llama"))
        network.resize_token_embeddings(tokenizer().get_vocab_size(), mean_resizing=False)
        torch.manual_seed(0)
        nn.init.normal_(network.get_input_embeddings().weight, std=0.3)
        nn.init.normal_(network.get_output_embeddings().weight, std=0.3)
        return network
    return shaped(shape)


def prompts_of(case: Case) -> list[Prompt]:
    numbers = np.random.default_rng(5)
    words = [numbers.integers(0, VOCAB_SIZE, length) for length in case.lengths]
    keys = iter(numbers.integers(0, 2**63, len(words) * case.samples).tolist())
    return [Prompt(word, 2 * next(keys)) for word in words for _ in range(case.samples)]


def rollouts_of(case: Case) -> list[Rollout]:
    ends = ENDS if case.shape != "talker" else ()
    generator = Generator(network_of(case.shape), ends=ends, tokenizer=tokenizer(), slots=case.slots)
    if case.batch_invariance is not None:
        generator._batch_invariance[torch.float32] = case.batch_invariance
    return generator.generate(prompts_of(case), case.params)


def written(rollouts: list[Rollout]) -> list[dict[str, Any]]:
    return [
        {
            "tokens": " ".join(map(str, rollout.tokens)),
            "logprobs": base64.b64encode(rollout.logprobs.astype("<f4").tobytes()).decode(),
            "reason": rollout.reason,
        }
        for rollout in rollouts
    ]


@pytest.mark.parametrize("name", CASES)
def test_rollouts_are_the_golden_ones(name: str) -> None:
    found = written(rollouts_of(CASES[name]))
    golden = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"rollouts": {}}
    if os.environ.get("ASSAY_RENEW_GOLDEN"):
        golden["machine"] = processor_here().model_dump(mode="json")
        golden["rollouts"][name] = found
        FILE.write_text(json.dumps(golden, indent=0) + "\n", encoding="utf-8")
        return
    expected = golden["rollouts"][name]
    if Processor(**golden["machine"]).sums_like(processor_here()):
        assert found == expected
        return
    for ours, recorded in zip(found, expected, strict=True):
        tokens = [np.array(rollout["tokens"].split(), np.int64) for rollout in (ours, recorded)]
        logprobs = [np.frombuffer(base64.b64decode(rollout["logprobs"]), "<f4") for rollout in (ours, recorded)]
        length = min(map(len, tokens))
        others = np.flatnonzero(tokens[0][:length] != tokens[1][:length])
        equal = others[0] if len(others) else length
        np.testing.assert_allclose(logprobs[0][:equal], logprobs[1][:equal], atol=1e-4)
