"""Lightning with the loader that it brings."""

from pathlib import Path

import lightning
import task
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    """The model and its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.network = task.model()

    def training_step(self, batch: dict[str, torch.Tensor], _number: int) -> torch.Tensor:
        return self.network(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def step_of(file: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(file.stem.partition("=")[2])


args = task.arguments()
ACCUMULATION = 2  # at any number of ranks: Lightning's checkpoints count micro-batches, not steps
micro_batch_size = task.GLOBAL_BATCH // (ACCUMULATION * task.WORLD_SIZE)
loader = DataLoader(task.rows(), micro_batch_size, shuffle=True, collate_fn=task.collate)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=task.WORLD_SIZE,
    strategy="ddp",
    accumulate_grad_batches=ACCUMULATION,
    max_epochs=task.EPOCHS,
    callbacks=[ModelCheckpoint(args.out, "{step}", every_n_train_steps=task.SAVE_EVERY, save_top_k=-1)],
    default_root_dir=args.out,
    logger=False,
    enable_progress_bar=False,
)
newest = max(args.out.glob("step=*.ckpt"), key=step_of, default=None) if args.resume else None
trainer.fit(Module(), loader, ckpt_path=newest)
