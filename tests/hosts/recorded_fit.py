"""A training by Lightning that goes on from its last checkpoint: `python recorded_fit.py FOLDER`."""

import os
import signal
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from assay.integrations.lightning import AssayCallback


class Network(pl.LightningModule):
    def __init__(self, learning_rate=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        if self.global_step + 1 == int(os.environ.get("KILL_AT", "0")):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.global_step + 1 == int(os.environ.get("FAIL_AT", "0")):
            print(1 / 0)
        loss = ((self.layer(batch[0]).squeeze(-1) - batch[1]) ** 2).mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", ((self.layer(batch[0]).squeeze(-1) - batch[1]) ** 2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate)


def main(out):
    torch.manual_seed(0)
    rows = [(row, row.sum()) for row in torch.randn(48, 8)]
    saver = ModelCheckpoint(out, every_n_train_steps=3, save_top_k=-1, filename="{step}", save_last=True)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", default_root_dir=str(out), logger=False, log_every_n_steps=2,
        enable_progress_bar=False, enable_model_summary=False, val_check_interval=6,
        callbacks=[AssayCallback("digits/first"), saver],
    )  # fmt: skip
    loaders = [torch.utils.data.DataLoader(rows, batch_size=4) for _ in range(2)]
    last = out / "last.ckpt"
    trainer.fit(Network(), *loaders, ckpt_path=str(last) if last.exists() else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
