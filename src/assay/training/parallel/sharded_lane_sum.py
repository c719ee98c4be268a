"""The sum of a step's gradients over all lanes where every rank holds a shard of the weights (FSDP2).

The same tree as in `lane_sum`, climbed from the other side. Each round of lanes is summed over the ranks as
soon as its backward has a layer's gradients; what a rank keeps is its shard of that sum:

    round k: lanes kW .. kW+W-1, one per rank -> all-to-all, add as a tree -> a shard of a 2^n-lane sum
    rounds:  a binary counter of sharded partial sums, as for lanes of one rank

So rank r works on the lanes r, W+r, 2W+r, ...; which rank has which lane does not matter to the numbers. What
enters the exchange is the gradient of one lane alone, a layer at a time: a spot check looks there.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from assay.records.run import Phase
from assay.training.parallel.lane_sum import OnOwnGradients
from assay.training.parallel.ranks import Ranks
from assay.training.parallel.tree import PartialSums

OnGradients = Callable[[Sequence[int], Sequence[Tensor]], None]
"""Takes indices of parameters and their gradients."""


class TreeReduceScatter:
    """FSDP2's reduce-scatter, added as a tree over ranks: each rank gets its chunk of the sum."""

    def __init__(self, enters: Callable[[Tensor], bool]) -> None:
        """`enters` is shown each input before the exchange; False leaves the exchange out."""
        self._enters = enters

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """A buffer for the exchange."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,  # noqa: ARG002
        async_op: bool = False,  # noqa: ARG002
    ) -> None:
        """Sum `input_tensor` [world_size * chunk] over the ranks into `output_tensor` [chunk]."""
        if not self._enters(input_tensor):
            output_tensor.zero_()
            return
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        chunks = list(received.view(group.size(), -1).unbind())
        while len(chunks) > 1:
            chunks = [left.add_(right) for left, right in zip(chunks[::2], chunks[1::2], strict=True)]
        output_tensor.copy_(chunks[0])


class ShardedLaneSum:
    """Shards a model in place so that `.grad` after a step's last lane is this rank's shard of the sum."""

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        *,
        enter_phase: Callable[[Phase], None] = lambda phase: None,
    ) -> None:
        self._partial_sums = PartialSums()
        self._lanes_in_grad = 0
        self._position = 0
        self.on_own_gradients: OnOwnGradients | None = None
        """Told of each lane's gradients before they are added to others."""
        self._told_apart: OnGradients | None = None
        self._ranks = ranks
        self.enter_phase = enter_phase
        # It warns of changes in place to what the model returns; a method never makes any.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
        mesh = DeviceMesh.from_group(ranks.training, ranks.device.type)
        for block in _blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self.module = model
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for part in model.modules():
            if isinstance(part, FSDPModule):
                exchange = TreeReduceScatter(partial(self._enters, self._indices_of(part)))
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
                part.set_custom_reduce_scatter(exchange)  # type: ignore[arg-type]

    def _indices_of(self, part: FSDPModule) -> list[int]:
        """The trained parameters that `part` gathers and exchanges as one, in the order in which it does."""
        index_of = {parameter: index for index, parameter in enumerate(self._parameters)}
        groups = part._get_fsdp_state()._fsdp_param_groups
        exchanged = [parameter.sharded_param for group in groups for parameter in group.fsdp_params]
        return [index_of[parameter] for parameter in exchanged if parameter.requires_grad]

    def _enters(self, indices: list[int], packed: Tensor) -> bool:
        """Shows a layer's gradients to who wants them; whether they are part of the step."""
        if self._told_apart is None and self.on_own_gradients is None:
            return True
        shapes = [self._parameters[index].shape for index in indices]
        gradients = unpacked(packed, shapes, self._ranks.world_size)
        if self._told_apart is not None:
            self._told_apart(indices, gradients)
            return False
        if self.on_own_gradients is not None:
            self.on_own_gradients(self._position, indices, gradients)
        return True

    def seen_alone(self, num_positions: int) -> range:
        """All: a lane is exchanged by itself."""
        return range(num_positions)

    @contextmanager
    def apart(self, told: OnGradients) -> Iterator[None]:
        """Backward passes inside are no part of the step: `told` is told of their gradients, `.grad` is not.

        The weights are gathered from all ranks, so all go through it together; they may compute any lane each.
        """
        kept = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        self._told_apart = told
        try:
            yield
        finally:
            self._told_apart = None
            for parameter, gradient in zip(self._parameters, kept, strict=True):
                parameter.grad = gradient

    def lanes(self, num_lanes: int) -> range:
        """Those of this rank."""
        return range(self._ranks.rank, num_lanes, self._ranks.world_size)

    @contextmanager
    def local(self) -> Iterator[None]:
        """Every lane is exchanged: a rank has no room for a whole gradient."""
        yield

    def begin_lane(self, position: int, *, num_backwards: int) -> None:
        """See `LaneSum`."""
        assert num_backwards == 1, "ranks would wait for each other's micro-batches"
        self._position = position
        if position and position % 2 == 0:
            self._partial_sums.add(self._take_gradients(), self._lanes_in_grad)
            self._lanes_in_grad = 0
        self._lanes_in_grad += 1

    def step_is_done(self) -> float:
        """Complete the tree; returns the seconds that this rank waited, as far as it can tell."""
        began_s = time.monotonic()
        gradients = [_shard(parameter.grad) for parameter in self._parameters]
        self._partial_sums.add_to(gradients, range(len(gradients)), self._lanes_in_grad)
        self._partial_sums.clear()
        self._lanes_in_grad = 0
        self.enter_phase("communication")
        return time.monotonic() - began_s

    def close(self) -> None:
        """Nothing to stop."""

    def _take_gradients(self) -> list[Tensor]:
        gradients = [_shard(parameter.grad) for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return gradients


def unpacked(packed: Tensor, shapes: Sequence[torch.Size], world_size: int) -> list[Tensor]:
    """The gradients of a layer that FSDP2 has packed for its exchange.

    It pads each one's first dimension to a multiple of `world_size` and cuts it into as many chunks; `packed`
    [world_size * chunk] has, for each rank, the chunks of all gradients one after another.
    """
    of_ranks = packed.view(world_size, -1)
    widths = [-(-shape[0] // world_size) * shape[1:].numel() for shape in shapes]
    assert sum(widths) == of_ranks.shape[1], f"{of_ranks.shape[1]} numbers a rank, {sum(widths)} expected"
    parts = torch.split(of_ranks, widths, dim=1)
    return [
        part.contiguous().view(-1)[: shape.numel()].view(shape)
        for part, shape in zip(parts, shapes, strict=True)
    ]


def _shard(gradient: Tensor | None) -> Tensor:
    assert isinstance(gradient, DTensor), "a parameter took no part in the loss"
    return gradient.to_local()


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a transformer: what stands in a list of modules is gathered and freed as one."""
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return [block for blocks in lists for block in blocks]
