"""Runs a training script as one rank, and kills the rank when an optimizer step is made: STEP SCRIPT [ARGUMENT...]."""

import os
import runpy
import signal
import sys

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

step_of_death, script = int(sys.argv[1]), sys.argv[2]


def _die(optimizer: Optimizer, *_: object) -> None:
    if max(int(state["step"]) for state in optimizer.state.values()) == step_of_death:
        os.kill(os.getpid(), signal.SIGKILL)


register_optimizer_step_post_hook(_die)
sys.argv = sys.argv[2:]
runpy.run_path(script, run_name="__main__")
