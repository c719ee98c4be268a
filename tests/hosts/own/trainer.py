"""transformers' Trainer with the loader that it brings."""

import task
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

args = task.arguments()
settings = TrainingArguments(
    output_dir=str(args.out),
    per_device_train_batch_size=task.MICRO_BATCH,
    gradient_accumulation_steps=task.ACCUMULATION,
    num_train_epochs=task.EPOCHS,
    save_steps=task.SAVE_EVERY,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(task.model(), settings, train_dataset=task.rows(), data_collator=task.collate)
trainer.train(resume_from_checkpoint=get_last_checkpoint(args.out) if args.resume and args.out.exists() else None)
