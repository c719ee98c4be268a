"""What the comparison of methods learns: rows and pairs whose lengths are spread as in life, and a model.

Lengths are log-normal with a sigma of 0.8: most rows are short, and a random batch is padded to a rare long
one.
Who wants texts gets the words `t1 t2 ...` of a tokenizer that makes the very same tokens of them.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from assay.data.dataset.index import index_dataset
from assay.models.causal_config import PretrainedCausalConfig
from assay.models.token_scores import CausalNetwork
from generation import PROMPT_TOKENS

SIGMA = 0.8
MEDIAN_TOKENS, MEDIAN_PROMPT, MEDIAN_COMPLETION = 64, 24, 40
SHORTEST, MAX_TOKENS = 4, 512
PAD, END, FIRST = 0, 1, 2
TARGET = "wanted"
"""The field of a prompt's item that graders read."""
ROWS_PER_GROUP = 32

NUM_HELD_OUT = 4
SPLIT = {"type": "time", "column": "created_at", "validation_from": "2026-01-02T00:00:00Z"}

Row = dict[str, Any]


def text_rows(num_rows: int, vocab_size: int) -> list[Row]:
    """Rows of tokens for SFT."""
    rng = np.random.default_rng(0)
    return [{"input_ids": _tokens(rng, MEDIAN_TOKENS, MAX_TOKENS, vocab_size)} for _ in range(num_rows)]


def pair_rows(num_rows: int, vocab_size: int) -> list[Row]:
    """A prompt with two completions, each as long as it happens to be."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(num_rows):
        prompt, chosen, rejected = (
            _tokens(rng, median, MAX_TOKENS // 2, vocab_size)
            for median in (MEDIAN_PROMPT, MEDIAN_COMPLETION, MEDIAN_COMPLETION)
        )
        rows.append(
            {
                "input_ids": [*prompt, *chosen[:-1], END],
                "rejected_ids": [*prompt, *rejected[:-1], END],
                "prompt_tokens": len(prompt),
                "margin": 0.0,
            }
        )
    return rows


def prompt_rows(num_rows: int, vocab_size: int) -> list[Row]:
    """Prompts of one length, and what an answer is paid for naming."""
    rng = np.random.default_rng(0)
    return [
        {
            "input_ids": [int(token) for token in rng.integers(FIRST, vocab_size, PROMPT_TOKENS)],
            "item": json.dumps({TARGET: f"t{10 + row % 90}"}),
        }
        for row in range(num_rows)
    ]


def _tokens(rng: np.random.Generator, median: int, longest: int, vocab_size: int) -> list[int]:
    length = int(np.clip(np.exp(rng.normal(np.log(median), SIGMA)), SHORTEST, longest))
    return [int(token) for token in rng.integers(FIRST, vocab_size, length)]


def num_tokens(row: Row) -> int:
    """Of a row, or of both sequences of a pair."""
    return len(row["input_ids"]) + len(row.get("rejected_ids", []))


def write_rows(folder: Path, rows: list[Row]) -> Path:
    """As a dataset of ours; returns the manifest's folder. Of `SPLIT`, all of them are trained."""
    num_rows, rows = len(rows), [*rows, *rows[:NUM_HELD_OUT]]
    days = [1 if row < num_rows else 2 for row in range(len(rows))]
    types = {
        "input_ids": pa.list_(pa.int32()),
        "rejected_ids": pa.list_(pa.int32()),
        "prompt_tokens": pa.int32(),
        "item": pa.string(),
    }
    columns = {name: pa.array([row[name] for row in rows], types.get(name, pa.float32())) for name in rows[0]}
    (folder / "rows").mkdir(parents=True)
    path = folder / "rows" / "0000.parquet"
    moments = pa.array([datetime(2026, 1, day, tzinfo=UTC) for day in days], pa.timestamp("us", "UTC"))
    table = pa.table({**columns, "created_at": moments})
    pq.write_table(table, path, row_group_size=ROWS_PER_GROUP)
    index_dataset(str(folder / "rows"), folder / "dataset", needs_label=False)
    return folder / "dataset"


def write_model(folder: Path, *, vocab_size: int, hidden_size: int, num_layers: int, num_heads: int = 4) -> Path:
    """A Llama with random weights, as every trainer loads it, with a tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=hidden_size, intermediate_size=3 * hidden_size,
        num_hidden_layers=num_layers, num_attention_heads=num_heads, max_position_embeddings=1024,
        pad_token_id=PAD, bos_token_id=END, eos_token_id=END,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer(vocab_size).save_pretrained(folder)
    return folder


def tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A word for each token."""
    words = Tokenizer(WordLevel({f"t{number}": number for number in range(vocab_size)}, unk_token="t2"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=f"t{PAD}", eos_token=f"t{END}", unk_token="t2")


def words(tokens: list[int]) -> str:
    """The text of tokens."""
    return " ".join(f"t{token}" for token in tokens)


@torch.no_grad()
def with_reference(rows: list[Row], model: Path, device: str = "cpu") -> list[Row]:
    """The pairs with what the model says of their completions, as `reference: {type: columns}` reads it."""
    network = CausalNetwork(PretrainedCausalConfig(type="pretrained", path=str(model))).eval().to(device)

    def logprob(row: Row, side: str) -> float:
        scores = network(torch.tensor([row[side]], device=device))
        return float(scores.logprobs[:, row["prompt_tokens"] - 1 :].sum())

    return [
        {
            **row,
            "ref_chosen_logps": logprob(row, "input_ids"),
            "ref_rejected_logps": logprob(row, "rejected_ids"),
        }
        for row in rows
    ]
