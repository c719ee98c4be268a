"""Carries out an exchange plan on the tensors of one rank: what the plan calls cells and slots, as memory."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from assay.base.shapes import Float
from assay.training.parallel.exchange_plan import OWN, Cells, ExchangePlan
from assay.training.parallel.swap import Transfer, swap


def sum_over_ranks(
    sums: Sequence[Float[Tensor, "number"]], plan: ExchangePlan, group: dist.ProcessGroup
) -> None:
    """Make the first of this rank's `sums` that over the lanes of all ranks of `group`.

    `sums`: flat and of one length, one for each of its blocks of lanes, in the order of the plan. The others
    are overwritten.
    """
    own = plan.ranks[group.rank()]
    size = sums[OWN].numel()
    edges = [cell * size // plan.num_cells for cell in range(plan.num_cells + 1)]
    # [slot]: its memory, and where in the buffer that begins.
    slots = [(each, 0) for each in sums]
    room = sums[OWN].new_empty(sum(edges[cells.stop] - edges[cells.first] for cells in own.rooms))
    taken = 0
    for cells in own.rooms:
        width = edges[cells.stop] - edges[cells.first]
        slots.append((room[taken : taken + width], edges[cells.first]))
        taken += width

    def at(slot: int, cells: Cells) -> Float[Tensor, "part"]:
        memory, begin = slots[slot]
        return memory[edges[cells.first] - begin : edges[cells.stop] - begin]

    for sends, receives, additions in own.rounds:
        swap(
            [Transfer(part.peer, at(part.slot, part.cells)) for part in sends],
            [Transfer(part.peer, at(part.slot, part.cells)) for part in receives],
            group,
        )
        for into, added, cells in additions:
            at(into, cells).add_(at(added, cells))


def laid_out_like(
    buffer: Float[Tensor, "number"],
    views: Sequence[Float[Tensor, "..."]],
    gradients: Sequence[Float[Tensor, "..."]],
) -> Float[Tensor, "number"]:
    """A flat tensor that holds `gradients` as `buffer` holds its `views`."""
    flat = torch.empty_like(buffer)
    begin = buffer.storage_offset()
    places = [flat.as_strided(view.size(), view.stride(), view.storage_offset() - begin) for view in views]
    torch._foreach_copy_(places, list(gradients))
    return flat
