"""A loop with Accelerate: `save_state`, `load_state`, and the documented way to go on in mid-epoch.

default: `skip_first_batches`. best: `use_stateful_dataloader`.
"""

import json

import task
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader

if __name__ == "__main__":
    options = task.arguments()
    is_stateful = options.setting == "best"
    config = DataLoaderConfiguration(
        use_stateful_dataloader=is_stateful, use_seedable_sampler=True, data_seed=task.SEED
    )
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    model = task.PlainModel(options.dropout)
    loader = DataLoader(task.rows(), batch_size=task.BATCH_ROWS, shuffle=True, collate_fn=task.batch_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    set_seed(task.SEED)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    checkpoints = sorted(options.out.glob("step-*/place.json"))
    epoch, in_epoch = 0, 0
    if checkpoints:
        accelerator.load_state(str(checkpoints[-1].parent))
        position = json.loads(checkpoints[-1].read_text())
        epoch, in_epoch = position["epoch"], position["in_epoch"]
    while epoch < task.EPOCHS:
        loader.set_epoch(epoch)
        batches = loader if is_stateful else accelerator.skip_first_batches(loader, in_epoch)
        for batch in batches:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            in_epoch += 1
            step = epoch * task.NUM_ROWS // (task.BATCH_ROWS * accelerator.num_processes) + in_epoch
            if step % task.SAVE_EVERY == 0:
                folder = options.out / f"step-{step:05}"
                accelerator.save_state(str(folder))
                if accelerator.is_main_process:
                    (folder / "place.json").write_text(json.dumps({"epoch": epoch, "in_epoch": in_epoch}))
        epoch, in_epoch = epoch + 1, 0
