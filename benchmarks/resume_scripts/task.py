"""The task of every script here: rows that can be told apart, and a tiny language model whose dropout draws at random.

Imports of seconds stay in the functions that need them: a check starts a script some fifteen times.
"""

import argparse
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

NUM_ROWS = 64
BATCH_ROWS = 4
EPOCHS = 2
SAVE_EVERY = 5
VOCABULARY = 128
SEED = 17
RANK, WORLD_SIZE = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
RANK_ROWS = BATCH_ROWS // WORLD_SIZE


def arguments() -> argparse.Namespace:
    """Return the arguments; every script trains from the newest checkpoint in `out`, or from nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--setting", default="best", choices=["best", "default"])
    parser.add_argument("--loader", default="torchdata")
    parser.add_argument("--dropout", type=float, default=0.1, help="of a plain model; ranks draw it by themselves")
    found = parser.parse_args()
    found.out.mkdir(parents=True, exist_ok=True)
    return found


def row(number: int) -> list[int]:
    """Return the tokens of a row: its number in base 100 before eight tokens that follow from it."""
    return [number // 100 + 1, number % 100 + 1, *((number * (7 + step) + step) % 100 + 1 for step in range(8))]


def rows() -> list[dict[str, list[int]]]:
    """Return all rows, which are all of one length."""
    return [{"input_ids": row(number), "labels": row(number)} for number in range(NUM_ROWS)]


def batch_of(some: list[dict]) -> dict[str, torch.Tensor]:
    """Collate rows: a tensor [rows, tokens] per field."""
    return {key: torch.stack([torch.as_tensor(one[key]) for one in some]).long() for key in ("input_ids", "labels")}


class PlainModel(torch.nn.Module):
    """A model of plain PyTorch that is called as those of transformers are."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.embedding = torch.nn.Embedding(VOCABULARY, 32)
        self.dropout = torch.nn.Dropout(dropout)
        self.hidden, self.head = torch.nn.Linear(32, 64), torch.nn.Linear(64, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **_: torch.Tensor) -> SimpleNamespace:
        logits = self.head(self.hidden(self.dropout(self.embedding(input_ids))).relu())
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss)


def model() -> Any:
    """Return a model of transformers as it is before its first step."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            attention_dropout=0.1,
            max_position_embeddings=128,
            pad_token_id=0,
            bos_token_id=VOCABULARY - 2,
            eos_token_id=VOCABULARY - 1,
        )
    )


def word_tokenizer() -> Any:
    """Return a tokenizer whose words are the numbers of tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, **{f"w{number}": number for number in range(1, VOCABULARY - 2)}, "<s>": 126, "</s>": 127}
    word_level = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    word_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return word_level


def tokenizer() -> Any:
    """Return the same as a tokenizer of transformers."""
    from transformers import PreTrainedTokenizerFast

    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=word_tokenizer(), **names)


def text(number: int) -> str:
    """Return a row as text that the tokenizer turns into its tokens."""
    return " ".join(f"w{token}" for token in row(number))


def newest_checkpoint(out: Path) -> str | None:
    """Return the newest checkpoint of transformers' Trainer in a folder, as its documentation does."""
    from transformers.trainer_utils import get_last_checkpoint

    return get_last_checkpoint(str(out))


def common_arguments(out: Path) -> dict:
    """Return the arguments of transformers' Trainer and of TRL's trainers that all scripts share."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return {
        "output_dir": str(out),
        "per_device_train_batch_size": RANK_ROWS,
        "num_train_epochs": EPOCHS,
        "save_steps": SAVE_EVERY,
        "save_strategy": "steps",
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "seed": SEED,
        "data_seed": SEED,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "full_determinism": True,
    }
