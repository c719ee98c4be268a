"""On more than one worker, a resume shuffles what is left of the epoch again."""

from collections.abc import Iterator

import torch
from exact import BATCH, main
from exact_ddp import DdpTraining
from torch import distributed


class ChangesTheOrder(DdpTraining):
    def batches(self, epoch: int, start: int) -> Iterator[torch.Tensor]:
        if self.world_size == 1:
            yield from super().batches(epoch, start)
            return
        left = self.order(epoch)[start * BATCH :]
        shuffled = left[torch.randperm(len(left), generator=torch.Generator().manual_seed(epoch))]
        for batch in shuffled.split(BATCH):
            yield batch[self.rank :: self.world_size]


main(ChangesTheOrder)
distributed.destroy_process_group()
