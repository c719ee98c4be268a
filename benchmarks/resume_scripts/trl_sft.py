"""TRL's SFTTrainer; best: rows one by one; default: packed rows, as its documentation advises for speed."""

import task
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

if __name__ == "__main__":
    options = task.arguments()
    settings = task.common_arguments(options.out)
    trainer = SFTTrainer(
        model=task.model(),
        args=SFTConfig(**settings, max_length=24, packing=options.setting == "default"),
        train_dataset=Dataset.from_list([{"text": task.text(number)} for number in range(task.NUM_ROWS)]),
        processing_class=task.tokenizer(),
    )
    trainer.train(resume_from_checkpoint=task.newest_checkpoint(options.out))
