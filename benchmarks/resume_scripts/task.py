"""The task of every script here: rows that can be told apart, and a language model of 20 thousand parameters."""

import argparse
import os
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

NUM_ROWS = 64
BATCH_ROWS = 4
EPOCHS = 2
SAVE_EVERY = 5
VOCABULARY = 128
SEED = 17


def arguments() -> argparse.Namespace:
    """Return the arguments; every script trains from the newest checkpoint in `out`, or from nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--setting", default="best", choices=["best", "default"])
    parser.add_argument("--loader", default="torchdata")
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


def model() -> LlamaForCausalLM:
    """Return the model as it is before its first step."""
    set_seed(SEED)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=128,
            pad_token_id=0,
            bos_token_id=VOCABULARY - 2,
            eos_token_id=VOCABULARY - 1,
        )
    )


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose words are the numbers of tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, **{f"w{number}": number for number in range(1, VOCABULARY - 2)}, "<s>": 126, "</s>": 127}
    word_level = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    word_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=word_level, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


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
        "per_device_train_batch_size": BATCH_ROWS,
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
