"""transformers' Trainer over a map-style dataset; `resume_from_checkpoint` skips the batches that were trained."""

import task
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Rows(Dataset):
    """The rows, by number."""

    def __len__(self) -> int:
        return task.NUM_ROWS

    def __getitem__(self, number: int) -> dict[str, list[int]]:
        return {"input_ids": task.row(number), "labels": task.row(number)}


if __name__ == "__main__":
    options = task.arguments()
    trainer = Trainer(
        model=task.model(),
        args=TrainingArguments(**task.common_arguments(options.out)),
        train_dataset=Rows(),
        data_collator=task.batch_of,
    )
    trainer.train(resume_from_checkpoint=task.newest_checkpoint(options.out))
