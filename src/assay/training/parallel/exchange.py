"""Carries out an exchange plan on the tensors of one rank: what the plan calls cells and slots, as memory."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from assay.base.shapes import Float
from assay.training.parallel.exchange_plan import OWN, Cells, ExchangePlan, ExchangeRound
from assay.training.parallel.swap import Transfer, swap


class Exchange:
    """One buffer's: the early rounds, once the earlier blocks are done, then the others."""

    def __init__(
        self,
        like: Float[Tensor, "number"],
        earlier: Sequence[Float[Tensor, "number"]],
        plan: ExchangePlan,
        group: dist.ProcessGroup,
    ) -> None:
        """`like`: as the sum of the largest block, whose numbers need not be there yet. `earlier`: the sums of
        this rank's other blocks, flat as well, in the order of the plan; they are overwritten."""
        own = plan.ranks[group.rank()]
        self._edges = [cell * like.numel() // plan.num_cells for cell in range(plan.num_cells + 1)]
        self._group = group
        self._rounds, self._num_early = own.rounds, plan.num_early
        # [slot]: its memory, and where in the buffer that begins.
        self._slots = [(like, 0), *((each, 0) for each in earlier)]
        room = like.new_empty(sum(map(self._width, own.rooms)))
        taken = 0
        for cells in own.rooms:
            self._slots.append((room[taken : taken + self._width(cells)], self._edges[cells.first]))
            taken += self._width(cells)

    def begin(self) -> None:
        """The early rounds."""
        self._carry_out(self._rounds[: self._num_early])

    def finish(self, largest: Float[Tensor, "number"]) -> None:
        """The others: makes the sum of the largest block that over the lanes of all ranks."""
        self._slots[OWN] = (largest, 0)
        self._carry_out(self._rounds[self._num_early :])

    def _width(self, cells: Cells) -> int:
        return self._edges[cells.stop] - self._edges[cells.first]

    def _at(self, slot: int, cells: Cells) -> Float[Tensor, "part"]:
        memory, begin = self._slots[slot]
        return memory[self._edges[cells.first] - begin : self._edges[cells.stop] - begin]

    def _carry_out(self, rounds: Sequence[ExchangeRound]) -> None:
        for sends, receives, additions in rounds:
            swap(
                [Transfer(part.peer, self._at(part.slot, part.cells)) for part in sends],
                [Transfer(part.peer, self._at(part.slot, part.cells)) for part in receives],
                self._group,
            )
            for into, added, cells in additions:
                self._at(into, cells).add_(self._at(added, cells))


def sum_over_ranks(
    sums: Sequence[Float[Tensor, "number"]], plan: ExchangePlan, group: dist.ProcessGroup
) -> None:
    """Make the first of this rank's `sums` that over the lanes of all ranks of `group`.

    `sums`: flat and of one length, one for each of its blocks of lanes, in the order of the plan. The others
    are overwritten.
    """
    exchange = Exchange(sums[OWN], sums[1:], plan, group)
    exchange.begin()
    exchange.finish(sums[OWN])


class FlatLayout(NamedTuple):
    """Where a flat buffer holds some gradients."""

    indices: tuple[int, ...]
    """The parameters that they belong to."""
    places: tuple[tuple[torch.Size, tuple[int, ...], int], ...]
    """Size, strides and offset of each."""
    like: tuple[int, torch.dtype, torch.device]
    """Length, type and device of the buffer."""

    @classmethod
    def of(
        cls, buffer: Float[Tensor, "number"], views: Sequence[Float[Tensor, "..."]], indices: Sequence[int]
    ) -> "FlatLayout":
        """That of `buffer`, whose views belong to these parameters."""
        begin = buffer.storage_offset()
        places = tuple((view.size(), view.stride(), int(view.storage_offset() - begin)) for view in views)
        return cls(tuple(indices), places, (buffer.numel(), buffer.dtype, buffer.device))

    def empty(self) -> Float[Tensor, "number"]:
        """A flat buffer."""
        length, dtype, device = self.like
        return torch.empty(length, dtype=dtype, device=device)

    def laid_out(self, gradients: Sequence[Float[Tensor, "..."]]) -> Float[Tensor, "number"]:
        """A flat buffer that holds those of all parameters' `gradients` that belong in it."""
        flat = self.empty()
        places = [flat.as_strided(size, strides, offset) for size, strides, offset in self.places]
        torch._foreach_copy_(places, [gradients[index] for index in self.indices])
        return flat
