"""transformers' Trainer.

torchrun --nproc-per-node 2 examples/hosts/trainer.py --out DIR [--resume]
"""

import task
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from assay.torch import RowLoader, attach

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
loader = RowLoader(task.dataset(args.data), global_batch_size=task.GLOBAL_BATCH, micro_batch_size=task.MICRO_BATCH)
trainer = Trainer(task.model(), settings)
attach(trainer, loader)
trainer.train(resume_from_checkpoint=get_last_checkpoint(args.out) if args.resume and args.out.exists() else None)
