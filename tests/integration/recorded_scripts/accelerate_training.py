"""A loop with Accelerate that goes on from its last checkpoint: `python accelerate_training.py FOLDER`."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator

from assay.integrations.accelerate import AssayTracker


def main(out):
    torch.manual_seed(0)
    tracker = AssayTracker("digits/first", num_steps=24)
    accelerator = Accelerator(log_with=tracker, cpu=True)
    model = torch.nn.Linear(8, 1)
    loader = torch.utils.data.DataLoader([(row, row.sum()) for row in torch.randn(96, 8)], batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    accelerator.init_trackers("digits", {"learning_rate": 0.01})
    tracker.watch(accelerator)
    saved = sorted(out.glob("step-*"))
    start = int(saved[-1].name.removeprefix("step-")) if saved else 0
    if saved:
        accelerator.load_state(str(saved[-1]))
    for step, (rows, targets) in enumerate(loader, 1):
        if step <= start:
            continue
        loss = ((model(rows).squeeze(-1) - targets) ** 2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": loss.item()}, step=step)
        if step == int(os.environ.get("KILL_AT", "0")):
            time.sleep(1)  # so that the digests of the last checkpoint, which a thread computes, are recorded
            os.kill(os.getpid(), signal.SIGKILL)
        if step % 6 == 0:
            accelerator.save_state(str(out / f"step-{step:03d}"))
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
