"""A plain loop on torchrun's ranks with the loader that it brings."""

import contextlib

import task
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

args = task.arguments()
distributed.init_process_group("gloo")
network = DistributedDataParallel(task.model())
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
loader = DataLoader(task.rows(), task.MICRO_BATCH, sampler=DistributedSampler(task.rows()), collate_fn=task.collate)
step, checkpoint = 0, args.out / "checkpoint.pt"
if args.resume and checkpoint.exists():
    saved = torch.load(checkpoint)
    step = saved["step"]
    network.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


def save() -> None:
    """Replace the checkpoint by a whole one."""
    state = {"step": step, "model": network.module.state_dict(), "optimizer": optimizer.state_dict()}
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(state, args.out / "unfinished.pt")
    (args.out / "unfinished.pt").rename(checkpoint)


steps_per_epoch = -(-len(loader) // task.ACCUMULATION)
for epoch in range(step // steps_per_epoch, task.EPOCHS):
    loader.sampler.set_epoch(epoch)
    for number, batch in enumerate(loader, 1):
        if number <= (step - epoch * steps_per_epoch) * task.ACCUMULATION:
            continue
        is_last = number % task.ACCUMULATION == 0 or number == len(loader)
        with contextlib.nullcontext() if is_last else network.no_sync():
            (network(**batch).loss / task.ACCUMULATION).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % task.SAVE_EVERY == 0 and distributed.get_rank() == 0:
                save()
distributed.destroy_process_group()
