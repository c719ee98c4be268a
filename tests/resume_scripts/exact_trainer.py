"""Hugging Face's Trainer, which resumes exactly if it is given the newest *finished* checkpoint.

The Trainer writes a checkpoint file by file under its final name. Its own `get_last_checkpoint` takes the newest name,
and cannot resume if a kill came meanwhile. The state of the trainer is the last file.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

ROWS, TOKENS = 44, 12


class Texts(Dataset[dict[str, Any]]):
    def __init__(self) -> None:
        self.tokens = torch.randint(0, 64, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def newest_finished(out: Path) -> Path | None:
    finished = [path.parent for path in out.glob("checkpoint-*/trainer_state.json")]
    return max(finished, key=lambda path: int(path.name.removeprefix("checkpoint-")), default=None)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    set_seed(0)
    small = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**small, num_attention_heads=2, attention_dropout=0.1))
    arguments = TrainingArguments(
        str(out),
        per_device_train_batch_size=4,
        num_train_epochs=2,
        save_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts())
    checkpoint = newest_finished(out)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
