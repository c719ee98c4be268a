"""TRL's DPOTrainer."""

import task
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

if __name__ == "__main__":
    options = task.arguments()
    pairs = [
        {
            "prompt": task.text(number),
            "chosen": f" w{number % 100 + 1} w{number % 7 + 1}",
            "rejected": f" w{number % 50 + 1} w{number % 11 + 8}",
        }
        for number in range(task.NUM_ROWS)
    ]
    trainer = DPOTrainer(
        model=task.model(),
        ref_model=task.model(),
        args=DPOConfig(**task.common_arguments(options.out), max_length=32),
        train_dataset=Dataset.from_list(pairs),
        processing_class=task.tokenizer(),
    )
    trainer.train(resume_from_checkpoint=task.newest_checkpoint(options.out))
