"""What recording costs a Trainer of transformers: a step with and without the callback, in turn in one process.

    python benchmarks/record.py [--pairs 12] [--steps 60] [--hidden 1024]

Prints the ratio of the medians with its 95% interval from a bootstrap of pairs, and the floor: the ratio of two
trainings without the callback. Exit 1 if the ratio is above 1.01 and above what the floor explains.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from assay.integrations.transformers import AssayCallback
from harness import options_of

GOAL = 1.01


class Network(torch.nn.Module):
    """Ten linear layers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, hidden),
            *(torch.nn.Linear(hidden, hidden) for _ in range(8)),
            torch.nn.Linear(hidden, 1),
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.layers(x).squeeze(-1)
        return {"loss": ((scores - labels) ** 2).mean(), "logits": scores}


class StepSeconds(TrainerCallback):  # type: ignore[misc]
    """The seconds from the end of a step to that of the next one, without the first ones."""

    def __init__(self) -> None:
        self.ended_s: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.ended_s.append(time.perf_counter())

    def median(self) -> float:
        return float(np.median(np.diff(self.ended_s)[5:]))


def step_s(arguments: argparse.Namespace, out: Path, *, is_recorded: bool) -> float:
    """Train, and return the median seconds of a step."""
    torch.manual_seed(0)
    rows = [{"x": row, "labels": row.sum()} for row in torch.randn(32 * arguments.steps, 64)]
    settings = TrainingArguments(
        str(out), max_steps=arguments.steps, per_device_train_batch_size=32, save_strategy="no", logging_steps=1,
        report_to=[], disable_tqdm=True, use_cpu=True, log_level="error",
    )  # fmt: skip
    trainer = Trainer(Network(arguments.hidden), settings, train_dataset=rows)
    trainer.remove_callback(next(c for c in trainer.callback_handler.callbacks if "Printer" in type(c).__name__))
    if is_recorded:
        trainer.add_callback(AssayCallback(f"benchmark/{time.monotonic_ns()}"))
    seconds = StepSeconds()
    trainer.add_callback(seconds)
    trainer.train()
    return seconds.median()


def interval(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the median ratio of pairs with its 95% interval."""
    ratios = np.array([recorded / plain for recorded, plain in pairs])
    draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return float(np.median(ratios)), float(low), float(high)


def main() -> None:
    """Train in pairs, and print the ratio and its floor."""
    parser = options_of(__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=1024)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ASSAY_HOME"] = folder + "/home"
        out = Path(folder) / "out"
        recorded, floor = [], []
        for _ in range(arguments.pairs):
            plain = step_s(arguments, out, is_recorded=False)
            recorded.append((step_s(arguments, out, is_recorded=True), plain))
            floor.append((step_s(arguments, out, is_recorded=False), plain))
    (ratio, low, high), (still, still_low, still_high) = interval(recorded), interval(floor)
    print(f"step without a record  {1000 * np.median([plain for _, plain in recorded]):.2f} ms")
    print(f"ratio with a record    {ratio:.4f}  [{low:.4f}, {high:.4f}]")
    print(f"floor (none to none)   {still:.4f}  [{still_low:.4f}, {still_high:.4f}]")
    sys.exit(int(low > max(GOAL, still_high)))


if __name__ == "__main__":
    main()
