"""A plain loop on torchrun's ranks.

torchrun --nproc-per-node 2 examples/hosts/ddp.py --out DIR [--resume]
"""

import contextlib

import task
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from assay.torch import RowLoader

args = task.arguments()
distributed.init_process_group("gloo")
network = DistributedDataParallel(task.model())
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
loader = RowLoader(task.dataset(args.data), global_batch_size=task.GLOBAL_BATCH, micro_batch_size=task.MICRO_BATCH)
step, checkpoint = 0, args.out / "checkpoint.pt"
if args.resume and checkpoint.exists():
    saved = torch.load(checkpoint)
    step = saved["step"]
    network.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])


def save() -> None:
    """Replace the checkpoint by a whole one."""
    state = {"step": step, "model": network.module.state_dict(), "optimizer": optimizer.state_dict()}
    state["loader"] = loader.state_dict()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(state, args.out / "unfinished.pt")
    (args.out / "unfinished.pt").rename(checkpoint)


steps_per_epoch = -(-len(loader) // task.ACCUMULATION)
for epoch in range(step // steps_per_epoch, task.EPOCHS):
    loader.set_epoch(epoch)
    for number, batch in enumerate(loader, 1):
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
