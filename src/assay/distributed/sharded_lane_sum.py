"""Sums a step's gradients over all lanes if each rank holds a shard of the weights (FSDP2).

The tree is that of `lane_sum`, evaluated round by round. As soon as the backward pass of a round has a layer's
gradients, they are exchanged; a rank gets its shard of each lane's gradient:

    round k: lanes kW .. kW+W-1, one per rank -> all-to-all -> one by one into a binary counter, in lane order
    after the last round the counter holds one sum: this rank's shard of the sum over all lanes

So rank r works on the lanes r, W+r, 2W+r, ..., for any number W of ranks. Ranks without a lane in the last
round compute a blank, because gathering the weights is a collective. The input of an exchange is the gradient
of one lane alone, a layer at a time: a spot check looks there.

A lane of several micro-batches takes as many passes, and each pass gathers the weights from all ranks. So all
ranks make as many passes as the round's longest lane; further passes are blanks and left out of the sums.
Exchanged gradients are added lane by lane until the round's last pass, and only then over lanes, as with
unsharded weights: that takes memory of one lane's gradient on each rank.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from assay.base.shapes import Float, Shaped
from assay.data.loader.lane_shares import LaneShares
from assay.distributed.lane_sum import OnOwnGradients, trained_parameters
from assay.distributed.ranks import Ranks
from assay.distributed.swap import all_to_all
from assay.distributed.tree import PartialSums
from assay.records.phase import EnterPhase

OnGradients = Callable[[Sequence[int], Sequence[Float[Tensor, "..."]]], None]
"""Receives parameter indices and their gradients."""


class RoundPass(NamedTuple):
    """One pass of a round: one lane of each rank."""

    number: int
    """Index in the round, from 0."""
    num_passes: Sequence[int]
    """[rank]: passes of its lane; 0 without a lane."""
    ends_step: bool
    """True in the step's last round."""

    @property
    def is_last(self) -> bool:
        """True if no lane has another pass."""
        return self.number + 1 == max(self.num_passes)


class TreeReduceScatter:
    """Replaces FSDP2's reduce-scatter by a sum over the tree of lanes: each rank gets its chunk."""

    def __init__(self, enters: Callable[[Float[Tensor, "number"]], RoundPass | None]) -> None:
        """`enters` is called with each input and returns its pass; None if it belongs to no step."""
        self._enters = enters
        self._of_lanes: list[Tensor] = []
        """[rank]: this rank's chunk of that rank's lane gradient, summed over the round's passes."""
        self._counter = PartialSums()
        """Adds chunks over the step's rounds."""

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Shaped[Tensor, "..."]:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Float[Tensor, "kept"],
        input_tensor: Float[Tensor, "number"],
        group: dist.ProcessGroup,
        op: object,  # noqa: ARG002
        async_op: bool = False,  # noqa: ARG002
    ) -> None:
        """Exchange `input_tensor` [world_size * chunk]; write the sum over the step's lanes to `output_tensor`.

        Before the last pass of the last round, zeros are written.
        """
        of_round = self._enters(input_tensor)
        if of_round is None:
            output_tensor.zero_()
            return
        sent = input_tensor.view(group.size(), -1)
        received = torch.empty_like(sent)
        all_to_all(received, sent, group)
        self._add(of_round, list(received.unbind()))
        if of_round.is_last:
            for chunk, num_passes in zip(self._of_lanes, of_round.num_passes, strict=True):
                if num_passes:
                    self._counter.add([chunk], 1)
            self._of_lanes = []
        if of_round.is_last and of_round.ends_step:
            output_tensor.copy_(self._counter.take()[0])
            return
        output_tensor.zero_()
        if of_round.is_last:
            self._counter.keep()

    def _add(self, of_round: RoundPass, chunks: list[Float[Tensor, "kept"]]) -> None:
        if of_round.number == 0:
            self._of_lanes = chunks
            return
        for total, chunk, num_passes in zip(self._of_lanes, chunks, of_round.num_passes, strict=True):
            if of_round.number < num_passes:
                total += chunk


class ShardedLaneSum:
    """Shards a model in place so that `.grad` after a step's last lane is this rank's shard of the sum."""

    adds_passes = False
    """`on_own_gradients` gets the gradient of each pass."""
    gathers_weights = True
    """`whole_model` is a collective."""

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        shares: LaneShares,
        *,
        several_passes: bool = False,
        gathers: bool = False,
        enter_phase: EnterPhase = lambda phase: None,
    ) -> None:
        """`several_passes`: lanes may take more than one backward pass, so ranks tell each other how many.
        `gathers`: `whole_model` is asked for, and takes the room of all weights on every rank."""
        assert ranks.inner is not None, "these ranks hold all weights each"
        assert shares.interleaved, "lanes are dealt in rounds"
        self.shares = shares
        self._several_passes = several_passes
        self._position = 0
        self._index = 0
        self._num_passes: list[list[int]] = []
        """[position][rank]: passes of the step's lanes."""
        self.on_own_gradients: OnOwnGradients | None = None
        """Told of the gradients of each pass of each lane before they are added to others. The indices count on
        over the passes: parameter 3 of the second pass is number `num_parameters + 3`."""
        self._is_separate = False
        self._separate_hook: OnGradients | None = None
        self._ranks = ranks
        self.enter_phase = enter_phase
        # It warns about in-place changes of the model's outputs, which no method makes.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
        self._whole = copy.deepcopy(model).requires_grad_(False) if gathers else None
        mesh = DeviceMesh.from_group(ranks.inner, ranks.device.type)
        for block in _blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self.module = model
        self._parameters = trained_parameters(model)
        for part in model.modules():
            if isinstance(part, FSDPModule):
                exchange = TreeReduceScatter(partial(self._enters, self._indices_of(part)))
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
                part.set_custom_reduce_scatter(exchange)  # type: ignore[arg-type]

    def _indices_of(self, part: FSDPModule) -> list[int]:
        """Return the trained parameters that `part` gathers and exchanges together, in that order."""
        index_of = {parameter: index for index, parameter in enumerate(self._parameters)}
        groups = part._get_fsdp_state()._fsdp_param_groups
        exchanged = [parameter.sharded_param for group in groups for parameter in group.fsdp_params]
        return [index_of[parameter] for parameter in exchanged if parameter.requires_grad]

    def _enters(self, indices: list[int], packed: Float[Tensor, "number"]) -> RoundPass | None:
        """Call the hook with a layer's gradients; return their pass, None if they belong to no step."""
        hook = self._separate_hook if self._is_separate else self._own_gradient_hook()
        if hook is not None:
            shapes = [self._parameters[index].shape for index in indices]
            numbers = [self._index * len(self._parameters) + index for index in indices]
            hook(numbers, unpacked(packed, shapes, self._ranks.world_size))
        if self._is_separate:
            return None
        return RoundPass(self._index, self._num_passes[self._position], self._position + 1 == self.shares.most)

    def _own_gradient_hook(self) -> OnGradients | None:
        """Return the hook for this rank's own lane in this pass; None for a blank."""
        if self.on_own_gradients is None or self._index >= self._num_passes[self._position][self._ranks.rank]:
            return None
        return partial(self.on_own_gradients, self._position)

    @torch.no_grad()
    def whole_model(self) -> nn.Module:
        """Return a copy with all weights, gathered now."""
        assert self._whole is not None, "constructed without `gathers`"
        for whole, sharded in zip(self._whole.parameters(), self.module.parameters(), strict=True):
            whole.copy_(sharded.full_tensor() if isinstance(sharded, DTensor) else sharded)
        return self._whole

    def seen_alone(self, num_positions: int) -> range:
        """Return all positions: each lane is exchanged alone."""
        return range(num_positions)

    def most_passes(self, num_passes: int) -> int:
        """Return the maximum over all ranks; all ranks call it together."""
        return max(count for [count] in self._ranks.all_gather_numbers([num_passes])) if self._several_passes else 1

    @contextmanager
    def separate_pass(self, index: int, hook: OnGradients | None) -> Iterator[None]:
        """Run pass `index` of a lane outside the step: `hook` gets its gradients, `.grad` is unchanged.

        The weights are gathered from all ranks, so all ranks run it together; each may compute any lane.
        """
        saved_gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        self._is_separate, self._separate_hook, self._index = True, hook, index
        try:
            yield
        finally:
            self._is_separate, self._separate_hook = False, None
            for parameter, gradient in zip(self._parameters, saved_gradients, strict=True):
                parameter.grad = gradient

    def begin_step(self, num_backwards: Sequence[int]) -> Sequence[int]:
        """Return the passes of each round: those of the longest lane of any rank; in the last round perhaps for
        no lane of this rank."""
        rounds = self.shares.most
        of_ranks = (
            self._ranks.all_gather_numbers([*num_backwards, *[0] * (rounds - len(num_backwards))])
            if self._several_passes
            else [[1] * load + [0] * (rounds - load) for load in self.shares.loads]
        )
        self._num_passes = [list(of_position) for of_position in zip(*of_ranks, strict=True)]
        return [max(of_position) for of_position in self._num_passes]

    @contextmanager
    def backward_pass(self, position: int, index: int) -> Iterator[None]:
        """One forward and backward of the rank's lane number `position`, or a blank beyond its last."""
        self._position, self._index = position, index
        yield
        if position + 1 < self.shares.most or index + 1 < max(self._num_passes[position]):
            for parameter in self._parameters:
                parameter.grad = None  # zeros: the sum comes with the step's last pass

    def backward(self, loss: Float[Tensor, ""]) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def step_is_done(self) -> float:
        """Returns the seconds that this rank waited since: none, what it waits for lies within backward."""
        assert all(parameter.grad is not None for parameter in self._parameters), "a parameter took no part"
        self.enter_phase("communication")
        return 0.0

    def buckets(self) -> list[tuple[int, float]]:
        """Return no buckets: layers are exchanged one by one."""
        return []

    def close(self) -> None: ...


def unpacked(
    packed: Float[Tensor, "number"], shapes: Sequence[torch.Size], world_size: int
) -> list[Float[Tensor, "..."]]:
    """Return the gradients of a layer that FSDP2 has packed for its exchange.

    FSDP2 pads the first dimension of each to a multiple of `world_size` and splits it into as many chunks;
    `packed` [world_size * chunk] has, for each rank, the chunks of all gradients one after another.
    """
    of_ranks = packed.view(world_size, -1)
    widths = [-(-shape[0] // world_size) * shape[1:].numel() for shape in shapes]
    assert sum(widths) == of_ranks.shape[1], f"{of_ranks.shape[1]} numbers a rank, {sum(widths)} expected"
    parts = torch.split(of_ranks, widths, dim=1)
    return [part.contiguous().view(-1)[: shape.numel()].view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformer: modules in a `ModuleList` are gathered and freed as units."""
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return [block for blocks in lists for block in blocks]
