"""Runs a script of Ray Train whose workers are killed when an optimizer step is made: STEP SCRIPT [ARGUMENT...]."""

import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import ray.train.torch
from ray.train.torch import TorchTrainer

SAVE_EVERY = 3  # as in examples/hosts/task.py, which only the workers can import
LONGEST_S = 300
step_of_death, script = int(sys.argv[1]), sys.argv[2]
out = next(word.partition("=")[2] for word in sys.argv if word.startswith("--out="))
printed = Path(f"{out}.printed")


def dying_trainer(train: Callable[[Any], None], **settings: Any) -> TorchTrainer:
    """Return a trainer whose workers die by SIGKILL in the step, after its update."""

    def die(optimizer: Any, *_: Any) -> None:
        if max(int(state["step"]) for state in optimizer.state.values()) != step_of_death:
            return
        # Ray Train polls its workers for checkpoints. It would not learn of the last one of dead workers.
        snapshot = Path(out, "numbers", "checkpoint_manager_snapshot.json")
        saved = f'"step":{step_of_death // SAVE_EVERY * SAVE_EVERY}}}'
        until_s = time.monotonic() + LONGEST_S
        while not (snapshot.exists() and saved in snapshot.read_text()) and time.monotonic() < until_s:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    def train_and_die(config: Any) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(die)
        # Ray prints for workers while the driver lives. On a busy machine it ends before that is done.
        with printed.open("a") as file, redirect_stdout(file):
            train(config)

    return TorchTrainer(train_and_die, **settings)


ray.train.torch.TorchTrainer = dying_trainer
ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
sys.argv = sys.argv[2:]
try:
    runpy.run_path(script, run_name="__main__")
finally:
    print(printed.read_text())
    printed.unlink()
