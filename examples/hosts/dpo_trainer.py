"""TRL's DPOTrainer, on preference pairs.

torchrun --nproc-per-node 2 examples/hosts/dpo_trainer.py --out DIR --data datasets/pairs [--resume]
"""

import task
from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint
from trl import DPOConfig, DPOTrainer

from assay.torch import RowLoader, attach

args = task.arguments()
settings = DPOConfig(
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
pairs = task.dataset(args.data, has_pairs=True)
loader = RowLoader(pairs, global_batch_size=task.GLOBAL_BATCH, micro_batch_size=task.MICRO_BATCH)
rows = Dataset.from_list([{"prompt": "1", "chosen": "2", "rejected": "3"}])  # looked at, and not trained on
trainer = DPOTrainer(
    task.model(has_pairs=True),
    task.model(has_pairs=True).eval(),  # the reference
    settings,
    train_dataset=rows,
    processing_class=task.tokenizer(),
)
attach(trainer, loader)
trainer.train(resume_from_checkpoint=get_last_checkpoint(args.out) if args.resume and args.out.exists() else None)
