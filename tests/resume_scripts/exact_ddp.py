"""The training of `exact.py` under DistributedDataParallel, in the same global batches at any world size.

torchrun --nproc-per-node 2 exact_ddp.py FOLDER
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from exact import Training, main
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


class DdpTraining(Training):
    dropout = 0.0  # its random numbers would depend on the world size

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        distributed.init_process_group("gloo")
        self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()
        self.model = DistributedDataParallel(self.model)

    def batches(self, epoch: int, start: int) -> Iterator[torch.Tensor]:
        for batch in super().batches(epoch, start):
            yield batch[self.rank :: self.world_size]

    def save(self) -> None:
        if self.rank == 0:
            super().save()
        distributed.barrier()


if __name__ == "__main__":
    main(DdpTraining)
    distributed.destroy_process_group()
