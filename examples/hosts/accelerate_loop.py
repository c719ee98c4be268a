"""Accelerate.

torchrun --nproc-per-node 2 examples/hosts/accelerate_loop.py --out DIR [--resume]
"""

import task
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

from assay.torch import RowLoader

args = task.arguments()
seeded = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(gradient_accumulation_steps=task.ACCUMULATION, cpu=True, dataloader_config=seeded)
network = task.model()
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
loader = RowLoader(task.dataset(args.data), global_batch_size=task.GLOBAL_BATCH, micro_batch_size=task.MICRO_BATCH)
network, optimizer = accelerator.prepare(network, optimizer)
accelerator.register_for_checkpointing(loader)
steps_per_epoch = -(-len(loader) // task.ACCUMULATION)
step = max((int(folder.name) for folder in args.out.glob("[0-9]*")), default=0) if args.resume else 0
if step:
    accelerator.load_state(args.out / str(step))
    accelerator.step = 0  # a count of micro-batches, which another number of ranks cuts in another way


def save() -> None:
    """Write a checkpoint, which has its name once it is whole."""
    accelerator.save_state(args.out / f"unfinished-{step}")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (args.out / f"unfinished-{step}").rename(args.out / str(step))


for epoch in range(step // steps_per_epoch, task.EPOCHS):
    loader.set_epoch(epoch)
    for batch in loader:
        with accelerator.accumulate(network):
            accelerator.backward(network(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            if step % task.SAVE_EVERY == 0:
                save()
accelerator.end_training()
