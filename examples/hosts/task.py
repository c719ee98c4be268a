"""What all examples train: rows that are numbered by their first token, and a tiny language model.

Each optimizer step prints a line of JSON with its number, as the optimizer counts it, and the rows that it learned.
"""

import argparse
import contextlib
import json
import os
import tempfile
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.nn.utils.rnn import pad_sequence
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import assay

ROWS, EPOCHS, SAVE_EVERY = 51, 2, 3
PAIRS = 52  # DPOTrainer gathers a number for each pair, so its ranks need equally many in every step
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))
GLOBAL_BATCH, MICRO_BATCH = 8, 2
ACCUMULATION = GLOBAL_BATCH // (MICRO_BATCH * WORLD_SIZE)
_learned: list[int] = []


def arguments() -> argparse.Namespace:
    """Return the arguments of an example."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="Folder for checkpoints.")
    parser.add_argument("--resume", action="store_true", help="Go on from the newest checkpoint in it.")
    parser.add_argument("--data", type=Path, default=Path("datasets/numbers"), help="The dataset; written if missing.")
    return parser.parse_args()


def rows(count: int = ROWS) -> list[dict[str, list[int]]]:
    """Return rows, of unequal lengths."""
    return [{"input_ids": [number, *[100 + number % 7] * (2 + number % 5)]} for number in range(count)]


def dataset(folder: Path, *, has_pairs: bool = False) -> assay.Dataset:
    """Index the rows, or preference pairs that begin with them, unless that is done."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=folder.parent))
        (new / "shards").mkdir()
        texts = [row["input_ids"] for row in rows(PAIRS if has_pairs else ROWS)]
        columns = {"input_ids": pa.array(texts, pa.list_(pa.int32()))}
        if has_pairs:
            columns["rejected_ids"] = pa.array([[number, 110, 111] for number in range(PAIRS)], pa.list_(pa.int32()))
            columns["prompt_tokens"] = pa.array([1] * PAIRS)
        pq.write_table(pa.table(columns), new / "shards" / "rows.parquet", row_group_size=5)
        assay.Dataset.index(new / "shards", new, no_label=True)
        with contextlib.suppress(OSError):  # another rank was faster
            new.rename(folder)
    return assay.Dataset(folder)


def collate(some: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad rows, as a loop without assay does."""
    ids = [torch.tensor(row["input_ids"]) for row in some]
    labels = pad_sequence(ids, batch_first=True, padding_value=-100)
    return {"input_ids": labels.clamp(min=0), "attention_mask": (labels >= 0).long(), "labels": labels}


def model(*, has_pairs: bool = False) -> GPT2LMHeadModel:
    """Return the model before its first step. With pairs, the second half of its rows are the rejected ones."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": 128,
        "n_positions": 64,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "bos_token_id": 126,
        "eos_token_id": 127,
    }
    network = GPT2LMHeadModel(GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    network.register_forward_pre_hook(partial(_note_rows, sequences_per_row=1 + has_pairs), with_kwargs=True)
    return network


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of the rows' numbers, which some hosts ask for."""
    words = Tokenizer(WordLevel({str(number): number for number in range(128)}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="127")


def _note_rows(network: torch.nn.Module, inputs: tuple, named: dict, *, sequences_per_row: int) -> None:
    ids = named["input_ids"] if "input_ids" in named else inputs[0]
    if network.training:
        _learned.extend(ids[: len(ids) // sequences_per_row, 0].tolist())


def _print_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if not _learned:
        return  # torch makes a step of nothing when it gives an optimizer its state
    step = max(int(state["step"]) for state in optimizer.state.values())
    print(json.dumps({"step": step, "rows": _learned}) + "\n", end="", flush=True)  # one write: ranks share the pipe
    _learned.clear()


register_optimizer_step_post_hook(_print_step)
