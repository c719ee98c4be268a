"""Training that resumes exactly. Each other script of this folder changes one method, and so plants one fault.

python exact.py FOLDER: train, or go on from the newest whole checkpoint in FOLDER
"""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROWS, BATCH, EPOCHS, SAVE_EVERY = 44, 4, 2, 3
STEPS_PER_EPOCH = ROWS // BATCH
PREEMPTED = 128 + signal.SIGTERM


class Training:
    """A small network on 44 rows, twice in another order, with dropout and a decaying learning rate."""

    dropout = 0.2

    def __init__(self, out: Path) -> None:
        torch.manual_seed(0)
        self.out = out
        self.rows = torch.randn(ROWS, 8)
        self.targets = self.rows.sum(1, keepdim=True)
        layers = [torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(self.dropout), torch.nn.Linear(16, 1)]
        self.model: torch.nn.Module = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + 0.1 * step))
        self.step = self.epoch = self.index = 0
        self.is_preempted = False
        signal.signal(signal.SIGTERM, self.on_sigterm)

    def run(self) -> None:
        self.resume()
        for epoch in range(self.epoch, EPOCHS):
            for batch in self.batches(epoch, self.index):
                self.train_step(batch)
                if self.step % SAVE_EVERY == 0 or self.is_preempted:
                    self.save()
                if self.is_preempted:
                    sys.exit(PREEMPTED)
            self.epoch, self.index = epoch + 1, 0
        self.save()

    def batches(self, epoch: int, start: int) -> Iterator[torch.Tensor]:
        """Yield the batches of an epoch from `start` on."""
        order = self.order(epoch)
        for index in range(start, STEPS_PER_EPOCH):
            yield order[index * BATCH :][:BATCH]

    def order(self, epoch: int) -> torch.Tensor:
        return torch.randperm(ROWS, generator=torch.Generator().manual_seed(epoch))

    def train_step(self, batch: torch.Tensor) -> None:
        loss = torch.nn.functional.mse_loss(self.model(self.rows[batch]), self.targets[batch])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.step, self.index = self.step + 1, self.index + 1

    def on_sigterm(self, *_: Any) -> None:
        self.is_preempted = True

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "generator": torch.get_rng_state(),
            "step": self.step,
            "epoch": self.epoch,
            "index": self.index,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["generator"])
        self.step, self.epoch, self.index = state["step"], state["epoch"], state["index"]

    def save(self) -> None:
        """Write a checkpoint under another name first, so that no name ever holds half of one."""
        unfinished = self.out / "unfinished"
        torch.save(self.state(), unfinished)
        unfinished.replace(self.out / f"step-{self.step}.pt")

    def resume(self) -> None:
        """Restore the newest checkpoint that can be read."""
        paths = self.newest_first()
        for path in paths:
            try:
                state = torch.load(path)
            except (RuntimeError, OSError, EOFError) as error:
                print(f"{path}: {error}", file=sys.stderr)
            else:
                self.restore(state)
                return
        if paths:
            sys.exit("no checkpoint is whole")

    def newest_first(self) -> list[Path]:
        return sorted(self.out.glob("step-*.pt"), key=lambda path: -int(path.stem.removeprefix("step-")))


def main(training: type[Training]) -> None:
    out = Path(sys.argv[1])
    out.mkdir(exist_ok=True)
    training(out).run()


if __name__ == "__main__":
    main(Training)
