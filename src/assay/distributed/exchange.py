"""Carries out an exchange plan on the tensors of one rank: what the plan calls cells and slots, as memory."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from assay.base.shapes import Float
from assay.distributed.exchange_plan import OWN, Cells, ExchangePlan, ExchangeRound
from assay.distributed.swap import Transfer, swap

SlotSums = Mapping[int, Float[Tensor, "number"]]
"""Flat sums of a rank's blocks, by their slots."""


class Exchange:
    """One buffer's: stage by stage, each once the blocks that it needs are done, then the rest."""

    def __init__(self, like: Float[Tensor, "number"], plan: ExchangePlan, group: dist.ProcessGroup) -> None:
        """`like`: as the sums that will be given, in length, type and device."""
        own = plan.ranks[group.rank()]
        self._edges = [cell * like.numel() // plan.num_cells for cell in range(plan.num_cells + 1)]
        self._group = group
        self._stages, self._rounds = iter(plan.stages), iter(own.rounds)
        # By slot: its memory, and where in the buffer that begins; of this rank's blocks, once they are given.
        self._slots: dict[int, tuple[Tensor, int]] = {}
        memory_of_slots = like.new_empty(sum(map(self._width, own.receive_slots)))
        offset = 0
        for slot, cells in enumerate(own.receive_slots, start=len(own.blocks)):
            self._slots[slot] = (
                memory_of_slots[offset : offset + self._width(cells)],
                self._edges[cells.first],
            )
            offset += self._width(cells)

    def begin(self, sums: SlotSums) -> None:
        """The next early stage, with the sums that it needs; they are overwritten."""
        self._set_sums(sums)
        self._run_rounds(islice(self._rounds, next(self._stages)))

    def finish(self, sums: SlotSums) -> None:
        """All that is left: makes the sum in slot `OWN` that over the lanes of all ranks."""
        self._set_sums(sums)
        self._run_rounds(self._rounds)

    def _set_sums(self, sums: SlotSums) -> None:
        for slot, memory in sums.items():
            self._slots[slot] = (memory, 0)

    def _width(self, cells: Cells) -> int:
        return self._edges[cells.stop] - self._edges[cells.first]

    def _view(self, slot: int, cells: Cells) -> Float[Tensor, "part"]:
        memory, begin = self._slots[slot]
        return memory[self._edges[cells.first] - begin : self._edges[cells.stop] - begin]

    def _run_rounds(self, rounds: Iterable[ExchangeRound]) -> None:
        for sends, receives, additions in rounds:
            swap(
                [Transfer(part.peer, self._view(part.slot, part.cells)) for part in sends],
                [Transfer(part.peer, self._view(part.slot, part.cells)) for part in receives],
                self._group,
            )
            for into, added, cells in additions:
                self._view(into, cells).add_(self._view(added, cells))


def sum_over_ranks(sums: Sequence[Float[Tensor, "number"]], plan: ExchangePlan, group: dist.ProcessGroup) -> None:
    """Make the first of this rank's `sums` that over the lanes of all ranks of `group`.

    `sums`: flat and of one length, one for each of its blocks of lanes, in the order of the plan. The others
    are overwritten.
    """
    Exchange(sums[OWN], plan, group).finish(dict(enumerate(sums)))


class FlatLayout(NamedTuple):
    """Where a flat buffer holds some gradients."""

    indices: tuple[int, ...]
    """The parameters that they belong to."""
    views: tuple[tuple[torch.Size, tuple[int, ...], int], ...]
    """Size, strides and offset of each."""
    like: tuple[int, torch.dtype, torch.device]
    """Length, type and device of the buffer."""

    @classmethod
    def of(
        cls, buffer: Float[Tensor, "number"], views: Sequence[Float[Tensor, "..."]], indices: Sequence[int]
    ) -> "FlatLayout":
        """That of `buffer`, whose views belong to these parameters."""
        begin = buffer.storage_offset()
        views = tuple((view.size(), view.stride(), int(view.storage_offset() - begin)) for view in views)
        return cls(tuple(indices), views, (buffer.numel(), buffer.dtype, buffer.device))

    def empty(self) -> Float[Tensor, "number"]:
        """A flat buffer."""
        length, dtype, device = self.like
        return torch.empty(length, dtype=dtype, device=device)

    def laid_out(self, gradients: Sequence[Float[Tensor, "..."]]) -> Float[Tensor, "number"]:
        """A flat buffer that holds those of all parameters' `gradients` that belong in it."""
        flat = self.empty()
        views = [flat.as_strided(size, strides, offset) for size, strides, offset in self.views]
        torch._foreach_copy_(views, [gradients[index] for index in self.indices])
        return flat
