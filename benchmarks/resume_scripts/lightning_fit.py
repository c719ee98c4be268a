"""Lightning's Trainer, with the newest checkpoint of `ModelCheckpoint`.

default: torch's DataLoader, which Lightning starts again in mid-epoch, with a warning.
best: torchdata's StatefulDataLoader, whose state Lightning keeps.
"""

import lightning
import task
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader


class Module(lightning.LightningModule):
    """The model and its optimizer."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.model = task.PlainModel(dropout)

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        return self.model(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    options = task.arguments()
    lightning.seed_everything(task.SEED)
    loader_class = StatefulDataLoader if options.setting == "best" else DataLoader
    loader = loader_class(task.rows(), batch_size=task.BATCH_ROWS, shuffle=True, collate_fn=task.batch_of)
    trainer = lightning.Trainer(
        max_epochs=task.EPOCHS,
        accelerator="cpu",
        default_root_dir=options.out,
        callbacks=[ModelCheckpoint(options.out, every_n_train_steps=task.SAVE_EVERY, save_last=True)],
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(Module(options.dropout), loader, ckpt_path="last" if (options.out / "last.ckpt").exists() else None)
