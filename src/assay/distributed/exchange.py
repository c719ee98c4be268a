"""Runs an exchange plan on the tensors of one rank: maps the plan's cells and slots to memory."""

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
"""Flat sums of a rank's blocks, by slot."""


class Exchange:
    """The exchange of one buffer: each stage runs when the blocks that it needs are done, then the rest."""

    def __init__(self, like: Float[Tensor, "number"], plan: ExchangePlan, group: dist.ProcessGroup) -> None:
        """`like` has the length, type and device of the sums."""
        own = plan.ranks[group.rank()]
        self._edges = [cell * like.numel() // plan.num_cells for cell in range(plan.num_cells + 1)]
        self._group = group
        self._stages, self._rounds = iter(plan.stages), iter(own.rounds)
        # Slot -> (memory, first cell's offset in the buffer). This rank's blocks are added when they are done.
        self._slots: dict[int, tuple[Tensor, int]] = {}
        self._error: BaseException | None = None
        memory_of_slots = like.new_empty(sum(map(self._width, own.receive_slots)))
        offset = 0
        for slot, cells in enumerate(own.receive_slots, start=len(own.blocks)):
            self._slots[slot] = (memory_of_slots[offset : offset + self._width(cells)], self._edges[cells.start])
            offset += self._width(cells)

    def begin(self, sums: SlotSums) -> None:
        """Run the next early stage with the sums that it needs; they are overwritten."""
        self._run(sums, islice(self._rounds, next(self._stages)))

    def finish(self, sums: SlotSums) -> None:
        """Run the remaining rounds: the sum in slot `OWN` becomes the sum over the lanes of all ranks.

        Raises the error of an early stage, if one failed.
        """
        self._run(sums, self._rounds)

    def _run(self, sums: SlotSums, rounds: Iterable[ExchangeRound]) -> None:
        if self._error is not None:
            raise self._error
        try:
            self._slots |= {slot: (memory, 0) for slot, memory in sums.items()}
            self._run_rounds(rounds)
        except BaseException as error:
            self._error = error
            raise

    def _width(self, cells: Cells) -> int:
        return self._edges[cells.stop] - self._edges[cells.start]

    def _view(self, slot: int, cells: Cells) -> Float[Tensor, "part"]:
        memory, begin = self._slots[slot]
        return memory[self._edges[cells.start] - begin : self._edges[cells.stop] - begin]

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
    """Turn the first of `sums` into the sum over the lanes of all ranks of `group`.

    `sums` are flat and of one length, one for each of this rank's blocks of lanes in the plan's order. The
    others are overwritten.
    """
    Exchange(sums[OWN], plan, group).finish(dict(enumerate(sums)))


class FlatLayout(NamedTuple):
    """The layout of gradients in a flat buffer."""

    indices: tuple[int, ...]
    """Indices of their parameters."""
    views: tuple[tuple[torch.Size, tuple[int, ...], int], ...]
    """Size, strides and offset of each gradient."""
    like: tuple[int, torch.dtype, torch.device]
    """Length, type and device of the buffer."""

    @classmethod
    def of(
        cls, buffer: Float[Tensor, "number"], views: Sequence[Float[Tensor, "..."]], indices: Sequence[int]
    ) -> "FlatLayout":
        """Return the layout of `buffer`, whose views are the gradients of these parameters."""
        begin = buffer.storage_offset()
        view_layouts = tuple((view.size(), view.stride(), int(view.storage_offset() - begin)) for view in views)
        return cls(tuple(indices), view_layouts, (buffer.numel(), buffer.dtype, buffer.device))

    def empty(self) -> Float[Tensor, "number"]:
        length, dtype, device = self.like
        return torch.empty(length, dtype=dtype, device=device)

    def laid_out(self, gradients: Sequence[Float[Tensor, "..."]]) -> Float[Tensor, "number"]:
        """Return a flat buffer with those of `gradients` that belong to it."""
        flat = self.empty()
        views = [flat.as_strided(size, strides, offset) for size, strides, offset in self.views]
        torch._foreach_copy_(views, [gradients[index] for index in self.indices])
        return flat
