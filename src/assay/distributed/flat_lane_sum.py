"""Sums a step's gradients over all lanes in flat buffers, without DDP.

    backward pass --gradients--> flat buffer of the pass --tree over lanes (see `tree`)--> .grad, views of that buffer

An addition of the tree is one operator on the whole gradient, and no hook stands in the backward pass, so that a pass
can be captured as a CUDA graph. Gradients are summed in the type of the parameters that the optimizer owns, whatever
type the model computes in. Ranks exchange their sums after the last pass, not while it goes on: `LaneSum` is faster for
several ranks.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from assay.base.shapes import Float
from assay.data.loader.lane_shares import LaneShares
from assay.distributed.exchange import sum_over_ranks
from assay.distributed.exchange_plan import exchange_plan
from assay.distributed.lane_sum import OnOwnGradients, trained_parameters
from assay.distributed.ranks import Ranks
from assay.distributed.tree import PartialSums
from assay.records.phase import EnterPhase

ALIGNED_NUMBERS = 64
"""Views begin at multiples of this many numbers, so that kernels can read several at once."""


class FlatLaneSum:
    """Sums gradients of whole weights; `.grad` of the optimizer's parameters is a view of the sum."""

    adds_passes = True
    gathers_weights = False

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        shares: LaneShares,
        *,
        master: nn.Module | None = None,
        enter_phase: EnterPhase = lambda phase: None,
    ) -> None:
        """`master`: the model with the parameters that the optimizer owns, if it is not `model`."""
        assert ranks.outer is not None, "these ranks shard their weights"
        self.module = model
        self.shares = shares
        self.enter_phase = enter_phase
        self.on_own_gradients: OnOwnGradients | None = None
        """Called with the gradients of each lane before they are added to others."""
        self._group, self._world_size = ranks.outer, ranks.world_size
        self._plan = exchange_plan(shares, early=False)
        blocks = shares.blocks_of(ranks.rank)
        self._block_positions = [block_position for block in blocks for block_position in range(block.size)]
        """[position]: the lane's position within its block."""
        self._parameters = trained_parameters(model)
        self._owned = self._parameters if master is None else trained_parameters(master)
        self.pass_gradient, self._views = _flat_views(self._owned)
        """The gradient of the last pass; after the step's last one, the sum over all lanes."""
        self._partial_sums = PartialSums()
        self._earlier_blocks: list[Tensor] = []
        self._earlier_passes: Tensor | None = None
        """Sum of the lane's passes so far."""
        self._num_passes: tuple[int, ...] = ()

    def whole_model(self) -> nn.Module:
        return self.module

    def seen_alone(self, num_positions: int) -> Sequence[int]:
        """Return the positions that `LaneSum` sees alone, so that a run has the same spot checks with both."""
        return [position for position in range(num_positions) if self._block_positions[position] % 2 == 0]

    def begin_step(self, num_backwards: Sequence[int]) -> Sequence[int]:
        self._num_passes = tuple(num_backwards)
        return self._num_passes

    def buckets(self) -> Sequence[tuple[int, float]]:
        return [(sum(view.nbytes for view in self._views), 0.0)]

    def backward(self, loss: Float[Tensor, ""]) -> None:
        """Write the gradient of a pass to `pass_gradient`; nothing of earlier passes remains there."""
        torch._foreach_copy_(self._views, list(torch.autograd.grad(loss, self._parameters)))

    @contextmanager
    def backward_pass(self, position: int, index: int) -> Iterator[None]:
        """Wrap one forward and backward pass; its gradient is added to the tree."""
        if index == 0 and position and self._block_positions[position] == 0:
            [block] = self._partial_sums.take()
            self._earlier_blocks.append(block)
        yield
        if self._earlier_passes is not None:
            self.pass_gradient += self._earlier_passes
        is_last_pass = index == self._num_passes[position] - 1
        self._earlier_passes = None if is_last_pass else self.pass_gradient.clone()
        if is_last_pass:
            self._add_lane(position)

    def _add_lane(self, position: int) -> None:
        if self.on_own_gradients is not None:
            self.on_own_gradients(position, range(len(self._views)), self._views)
        if position == len(self._num_passes) - 1:
            self._partial_sums.add_to([self.pass_gradient], [0], 1)
        else:
            self._partial_sums.add([self.pass_gradient], 1)
            self._partial_sums.keep()

    def step_is_done(self) -> float:
        self._partial_sums.clear()
        self.enter_phase("communication")
        began_s = time.monotonic()
        if self._world_size > 1:
            sum_over_ranks([self.pass_gradient, *reversed(self._earlier_blocks)], self._plan, self._group)
        self._earlier_blocks.clear()
        for parameter, view in zip(self._owned, self._views, strict=True):
            parameter.grad = view
        return time.monotonic() - began_s

    def close(self) -> None:
        """Do nothing: there is no thread."""


def _flat_views(parameters: Sequence[nn.Parameter]) -> tuple[Float[Tensor, "number"], list[Float[Tensor, "..."]]]:
    """Return a flat buffer of zeros, and a view of it for each parameter."""
    widths = [-(-parameter.numel() // ALIGNED_NUMBERS) * ALIGNED_NUMBERS for parameter in parameters]
    like = parameters[0]
    assert all((p.dtype, p.device) == (like.dtype, like.device) for p in parameters), "gradients of several types"
    flat = torch.zeros(sum(widths), dtype=like.dtype, device=like.device)
    parts = torch.split(flat, widths)
    return flat, [part[: p.numel()].view(p.shape) for part, p in zip(parts, parameters, strict=True)]
