"""Twenty steps of the real trainer beside a loop in plain PyTorch: same rows, same weights, same numbers.

The loop knows nothing of ours but the order of the rows and the network with its starting weights: it reads the
Parquet files itself, pads, averages over the step's rows, clips, steps and schedules with what PyTorch ships.
Each optimizer key is moved away from its default in turn, so one that is ignored shows.
"""

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR

from assay.training.trainer.config import OptimizerConfig
from one_rank import Trained, rows_of_steps, starting_model, train_one_rank
from variants import slow

NUM_STEPS = 20
CATEGORY_BUCKETS = 8


def recipe(dataset: Path, **optimizer: Any) -> dict[str, Any]:
    """Four lanes of four rows; 20 steps end in the midst of the second epoch."""
    return {
        "name": "reference",
        "seed": 3,
        "data": {"dataset": str(dataset), "split": {"type": "hash", "validation_fraction": 0.1}},
        "loader": {
            "lanes": 4, "global_batch_size": 16, "window_rows": 16, "threads": 1, "max_micro_batch_tokens": 40,
        },
        "method": {
            "type": "classify",
            "encoder": {
                "type": "new", "vocab_size": 50, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
                "intermediate_size": 32, "max_tokens": 32, "dropout": 0.0,
            },
            "categorical_columns": ["language"],
            "numeric_columns": ["turns"],
            "category_buckets": CATEGORY_BUCKETS,
            "head_dropout": 0.0,
        },
        "trainer": {
            "epochs": 2, "max_steps": NUM_STEPS, "commit_every": NUM_STEPS, "spot_check_every": None,
            "optimizer": {"learning_rate": 5e-3, "epsilon": 1e-6, **optimizer},
        },
    }  # fmt: skip


KEYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "learning_rate": {"learning_rate": 2e-2},
    "betas": {"betas": [0.5, 0.7]},
    "epsilon": {"epsilon": 1e-2},
    "weight_decay": {"weight_decay": 3.0},
    "no weight_decay": {"weight_decay": 0.0},
    "max_gradient_norm": {"max_gradient_norm": 0.05, "epsilon": 1e-3},
    "no max_gradient_norm": {"max_gradient_norm": None, "epsilon": 1e-3},
    "constant": {"schedule": {"type": "constant"}},
    "constant after a warm-up": {"schedule": {"type": "constant", "warmup_steps": 7}},
    "linear": {"schedule": {"type": "linear", "warmup_steps": 5, "final_fraction": 0.0}},
    "cosine": {"schedule": {"type": "cosine", "warmup_steps": 6, "final_fraction": 0.25}},
    "all at once": {
        "learning_rate": 2e-2, "betas": [0.5, 0.7], "epsilon": 1e-3, "weight_decay": 3.0,
        "max_gradient_norm": 0.05, "schedule": {"type": "linear", "warmup_steps": 5, "final_fraction": 0.5},
    },
}  # fmt: skip
QUICK = ("all at once", "no max_gradient_norm", "cosine")
"""They move every key, and back; one that is ignored is named by its own variant, in `make test-slow`."""


class Rows:
    """The dataset's rows in the order of their files, as tensors."""

    def __init__(self, source: Path) -> None:
        table = pa.concat_tables([pq.read_table(path) for path in sorted(source.glob("*.parquet"))])
        self._rows = table.to_pylist()

    def padded(self, ids: list[int]) -> dict[str, Tensor]:
        rows = [self._rows[row] for row in ids]
        longest = max(len(row["input_ids"]) for row in rows)
        mask = [[column < len(row["input_ids"]) for column in range(longest)] for row in rows]
        return {
            "input_ids": torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]),
            "lengths": torch.tensor([len(row["input_ids"]) for row in rows]),
            "metadata_buckets": torch.tensor([[category(row["language"]), number(row["turns"])] for row in rows]),
            "attention_mask": torch.tensor(mask),
            "labels": torch.tensor([float(row["label"]) for row in rows]),
        }


def category(value: str | None) -> int:
    return 0 if value is None else 1 + xxhash.xxh3_64_intdigest(value.encode()) % CATEGORY_BUCKETS


def number(value: int | None) -> int:
    """Quarter octaves of |x| + 1; none of these is negative."""
    return 0 if value is None else 65 + int(4 * math.log2(value + 1))


def rates_of_pytorch(config: OptimizerConfig, num_steps: int) -> list[float]:
    """What PyTorch's schedulers give the steps 1, 2, ...; they change no weights, so any optimizer does."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=config.learning_rate)
    schedule = config.schedule
    warmup, falls = schedule.warmup_steps, num_steps - schedule.warmup_steps
    fall: Any = {
        "constant": lambda: ConstantLR(optimizer, factor=1.0),
        "linear": lambda: LinearLR(optimizer, 1.0, schedule.final_fraction, total_iters=falls),
        "cosine": lambda: CosineAnnealingLR(optimizer, falls, config.learning_rate * schedule.final_fraction),
    }[schedule.type]
    if warmup:
        # The step numbered `warmup` is at the peak, and there the fall begins.
        rise = LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1)
        scheduler: Any = SequentialLR(optimizer, [rise, fall()], milestones=[warmup - 1])
    else:
        scheduler = fall()
    rates = []
    for _ in range(num_steps + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    # Without a warm-up, the peak is that of a step 0, which nobody makes.
    return rates[:num_steps] if warmup else rates[1:]


@cache
def plain_loop(key: str, dataset: Path) -> Trained:
    tree = recipe(dataset, **KEYS[key])
    config = OptimizerConfig.model_validate(tree["trainer"]["optimizer"])
    rows, model = Rows(dataset.parent / "source"), starting_model(tree)
    vectors = [p for name, p in model.named_parameters() if "bias" in name or "norm" in name.lower()]
    matrices = [p for p in model.parameters() if all(p is not vector for vector in vectors)]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=config.betas, eps=config.epsilon)
    steps = []
    lanes_of_steps, rates = rows_of_steps(tree, NUM_STEPS), rates_of_pytorch(config, NUM_STEPS)
    for lanes, rate in zip(lanes_of_steps, rates, strict=True):
        batch = rows.padded([row for lane in lanes for row in lane])
        labels = batch.pop("labels")
        loss = nn.functional.binary_cross_entropy_with_logits(model(**batch), labels)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.max_gradient_norm or math.inf)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        steps.append({"loss": loss.item(), "gradient_norm": float(norm), "learning_rate": rate})
    return Trained(steps, dict(model.state_dict()))


@pytest.mark.parametrize("key", ["all at once", *slow(*(key for key in KEYS if key != "all at once"))])
def test_twenty_steps_are_those_of_a_loop_in_plain_pytorch(key: str, token_dataset: Path, tmp_path: Path) -> None:
    ours, plain = train_one_rank(recipe(token_dataset, **KEYS[key]), tmp_path), plain_loop(key, token_dataset)
    assert len(ours.steps) == NUM_STEPS
    for name in ("learning_rate", "loss", "gradient_norm"):
        of_ours, of_plain = ([step[name] for step in run.steps] for run in (ours, plain))
        np.testing.assert_allclose(of_ours, of_plain, rtol=2e-5, err_msg=name)
    # Softmax forgets what a key's bias adds to all scores alike: its gradient is noise, which Adam scales up.
    # Elsewhere, too, a gradient near 0 has round-off that Adam makes a part of the learning rate.
    atol = 1e-3 * max(step["learning_rate"] for step in plain.steps)
    for name in plain.weights.keys() - {"encoder.encoder.layer.0.attention.self.key.bias"}:
        torch.testing.assert_close(ours.weights[name], plain.weights[name], rtol=1e-4, atol=atol)


@pytest.mark.slow
def test_each_key_moves_the_numbers_further_than_round_off(token_dataset: Path) -> None:
    """The references differ from one another where they should, so equality with one says something."""
    ends = sorted(plain_loop(key, token_dataset).steps[-1]["loss"] for key in KEYS)
    assert min(np.diff(ends) / ends[0]) > 5e-5
