"""torchtitan's dataloader protocol.

    torchrun --nproc-per-node 2 examples/hosts/torchtitan_loader.py --out DIR [--resume]


The loop is the one of `torchtitan.trainer.Trainer`, which wants a GPU: it builds the loader from its `Config` and keeps
it with the model in a distributed checkpoint.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import task
import torch
from torch import Tensor, distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torchtitan.components.dataloader import BaseDataLoader

from assay.torch import RowLoader


class AssayDataLoader(BaseDataLoader):
    """Rows of an indexed dataset, without end."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """`dataset_path` is the dataset's folder."""

    def __init__(self, config: Config, *, dp_rank: int, dp_world_size: int, local_batch_size: int, **_: Any) -> None:
        self.rows = RowLoader(
            config.dataset_path,
            global_batch_size=task.GLOBAL_BATCH,
            micro_batch_size=local_batch_size,
            rank=dp_rank,
            world_size=dp_world_size,
        )

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        while True:
            for batch in self.rows:
                labels = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
                yield {"input": batch["input_ids"]}, labels

    def state_dict(self) -> dict[str, Any]:
        return self.rows.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows.load_state_dict(state_dict)


args = task.arguments()
distributed.init_process_group("gloo")
network = DistributedDataParallel(task.model())
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
loader = AssayDataLoader.Config(dataset_path=str(task.dataset(args.data).folder)).build(
    dp_rank=distributed.get_rank(), dp_world_size=task.WORLD_SIZE, local_batch_size=task.MICRO_BATCH
)
step = max((int(folder.name) for folder in args.out.glob("[0-9]*")), default=0) if args.resume else 0
if step:
    model_state, optimizer_state = get_state_dict(network, optimizer)
    states = {"model": model_state, "optimizer": optimizer_state, "dataloader": loader}
    checkpoint.load(states, checkpoint_id=args.out / str(step))
    set_state_dict(network, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])


def save() -> None:
    """Write a checkpoint, which has its name once it is whole."""
    model_state, optimizer_state = get_state_dict(network, optimizer)
    states = {"model": model_state, "optimizer": optimizer_state, "dataloader": loader}
    checkpoint.save(states, checkpoint_id=args.out / f"unfinished-{step}")
    if distributed.get_rank() == 0:
        (args.out / f"unfinished-{step}").rename(args.out / str(step))


batches = iter(loader)
while step < task.EPOCHS * loader.rows.steps_per_epoch:
    for number in range(task.ACCUMULATION):
        inputs, labels = next(batches)
        with contextlib.nullcontext() if number + 1 == task.ACCUMULATION else network.no_sync():
            logits = network(input_ids=inputs["input"]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            (loss / task.ACCUMULATION).backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % task.SAVE_EVERY == 0:
        save()
distributed.destroy_process_group()
