"""transformers' Trainer over a streamed dataset of `datasets` with a shuffle buffer.

The Trainer reads the batches that were trained again and skips them, its only way to go on in a stream.
"""

import task
from datasets import Dataset
from transformers import Trainer, TrainingArguments

if __name__ == "__main__":
    options = task.arguments()
    stream = Dataset.from_list(task.rows()).to_iterable_dataset(num_shards=4).shuffle(seed=task.SEED, buffer_size=32)
    settings = task.common_arguments(options.out)
    settings["max_steps"] = task.EPOCHS * task.NUM_ROWS // task.BATCH_ROWS
    trainer = Trainer(
        model=task.model(),
        args=TrainingArguments(**settings),
        train_dataset=stream,
        data_collator=task.batch_of,
    )
    trainer.train(resume_from_checkpoint=task.newest_checkpoint(options.out))
