"""The handler of SIGTERM saves, and waits for a lock that the interrupted training step holds."""

import threading
from typing import Any

import torch
from exact import Training, main

LOCK = threading.Lock()


class DeadlocksOnSigterm(Training):
    def train_step(self, batch: torch.Tensor) -> None:
        with LOCK:
            super().train_step(batch)

    def on_sigterm(self, *_: Any) -> None:
        with LOCK:
            self.save()
        self.is_preempted = True


main(DeadlocksOnSigterm)
