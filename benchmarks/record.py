"""What recording costs a Trainer of transformers: steps with and without the callback, in turn in one training.

    python benchmarks/record.py [--blocks 400] [--hidden 1024]

Every other block of ten steps is recorded. Prints the ratio of the median steps of neighbours, and the floor: the same
ratio in a training whose callback does nothing. The process retains freed memory: page faults, a tenth of a step, would
vary more than what is measured.
"""

import argparse
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from assay.distributed.allocator import retain_freed_memory
from assay.integrations.transformers import AssayCallback
from harness import Median, Target, describe_machine, options_of, print_result, workspace

TARGETS = [Target("step with / without a record", 1.01, at_most=True)]
STEPS_IN_BLOCK = 10
NUM_FIRST = 2
"""Steps of a block that are not counted: they warm the caches."""


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


class StepClock(TrainerCallback):  # type: ignore[misc]
    """Notes when each step ends, and takes another callback out of every other block of steps."""

    def __init__(self, trainer: Trainer, other: TrainerCallback) -> None:
        self._callbacks = trainer.callback_handler.callbacks
        self._other = other
        self.ended_s: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.ended_s.append(time.perf_counter())
        block, rest = divmod(len(self.ended_s), STEPS_IN_BLOCK)
        if rest == 0 and block % 2:
            self._callbacks.remove(self._other)
        elif rest == 0:
            self._callbacks.append(self._other)

    def medians_s(self) -> np.ndarray:
        """Return the median seconds of a step of each block."""
        ended_s = self.ended_s[: len(self.ended_s) // STEPS_IN_BLOCK * STEPS_IN_BLOCK]  # without the log at the end
        blocks = np.diff(ended_s, prepend=np.nan).reshape(-1, STEPS_IN_BLOCK)
        medians: np.ndarray = np.median(blocks[:, NUM_FIRST:], axis=1)
        return medians


def measure(arguments: argparse.Namespace, out: Path, callback: TrainerCallback) -> tuple[Median, float]:
    """Train. Return the ratio of the blocks with the callback to those before and after them, and the seconds of a step
    without it."""
    torch.manual_seed(0)
    rows = [{"x": row, "labels": row.sum()} for row in torch.randn(1024, 64)]
    settings = TrainingArguments(
        str(out), max_steps=arguments.blocks * STEPS_IN_BLOCK, per_device_train_batch_size=32, save_strategy="no",
        logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, log_level="error",
    )  # fmt: skip
    trainer = Trainer(Network(arguments.hidden), settings, train_dataset=rows)
    trainer.remove_callback(next(c for c in trainer.callback_handler.callbacks if "Printer" in type(c).__name__))
    clock = StepClock(trainer, callback)
    trainer.add_callback(clock)
    trainer.add_callback(callback)  # after the clock, which may take it out of the list that is being called
    trainer.train()
    medians_s = clock.medians_s()
    ratios = np.array([first / second for first, second in pairwise(medians_s)])
    ratios[1::2] = 1 / ratios[1::2]  # which begin with a block without the callback
    return Median.of(ratios.tolist()), float(np.median(medians_s[1::2]))


def main() -> None:
    """Train twice, and print the ratio and its floor."""
    parser = options_of(__doc__)
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--hidden", type=int, default=1024)
    arguments = parser.parse_args()
    describe_machine()
    retain_freed_memory()
    with workspace() as folder:
        floor, _ = measure(arguments, folder / "out", TrainerCallback())
        ratio, step_s = measure(arguments, folder / "out", AssayCallback("benchmark/record"))
    print_result({"step with / without a record": ratio, "floor: none / none": floor, "step_s": step_s}, TARGETS)


if __name__ == "__main__":
    main()
