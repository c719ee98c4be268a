"""A training by transformers that goes on from its last checkpoint: `python transformers_training.py FOLDER`."""

import os
import signal
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from assay.integrations.transformers import AssayCallback


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, labels=None):
        scores = self.layer(x).squeeze(-1)
        return {"loss": ((scores - labels) ** 2).mean(), "logits": scores}


class Trouble(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == int(os.environ.get("KILL_AT", "0")):
            os.kill(os.getpid(), signal.SIGKILL)
        if state.global_step == int(os.environ.get("FAIL_AT", "0")):
            print(1 / 0)


def main(out):
    torch.manual_seed(0)
    rows = [{"x": row, "labels": row.sum()} for row in torch.randn(96, 8)]
    arguments = TrainingArguments(
        str(out), max_steps=24, per_device_train_batch_size=8, save_steps=6, logging_steps=2, eval_strategy="steps",
        eval_steps=8, report_to=[], disable_tqdm=True, use_cpu=True, learning_rate=0.01, save_total_limit=3,
    )  # fmt: skip
    trainer = Trainer(Network(), arguments, train_dataset=rows, eval_dataset=rows)
    trainer.add_callback(AssayCallback("digits/first"))
    trainer.add_callback(Trouble())
    trainer.train(resume_from_checkpoint=any(out.glob("checkpoint-*")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
