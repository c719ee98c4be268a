"""TRL's SFTTrainer with the loader that it brings."""

import task
from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

args = task.arguments()
settings = SFTConfig(
    output_dir=str(args.out),
    per_device_train_batch_size=task.MICRO_BATCH,
    gradient_accumulation_steps=task.ACCUMULATION,
    num_train_epochs=task.EPOCHS,
    save_steps=task.SAVE_EVERY,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
)
rows = Dataset.from_list(task.rows())
trainer = SFTTrainer(task.model(), settings, train_dataset=rows, processing_class=task.tokenizer())
trainer.train(resume_from_checkpoint=get_last_checkpoint(args.out) if args.resume and args.out.exists() else None)
