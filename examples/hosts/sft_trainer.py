"""TRL's SFTTrainer.

torchrun --nproc-per-node 2 examples/hosts/sft_trainer.py --out DIR [--resume]
"""

import task
from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from assay.torch import RowLoader, attach

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
loader = RowLoader(task.dataset(args.data), global_batch_size=task.GLOBAL_BATCH, micro_batch_size=task.MICRO_BATCH)
rows = Dataset.from_list(task.rows()[:1])  # SFTTrainer looks at a dataset of this type, and does not train on it here
trainer = SFTTrainer(task.model(), settings, train_dataset=rows, processing_class=task.tokenizer())
attach(trainer, loader)
trainer.train(resume_from_checkpoint=get_last_checkpoint(args.out) if args.resume and args.out.exists() else None)
