"""The sum of a step's gradients over all lanes where every rank holds a shard of the weights (FSDP2).

The same tree as in `lane_sum`, climbed from the other side. Each round of lanes crosses the ranks as soon as
its backward has a layer's gradients; what a rank gets is its shard of each lane's:

    round k: lanes kW .. kW+W-1, one per rank -> all-to-all -> one by one into a binary counter, in lane order
    at the end of the last round the counter holds one sum: this rank's shard of that over all lanes

So rank r works on the lanes r, W+r, 2W+r, ..., for any number W of ranks. In the last round some may have no
lane: they compute a blank, for all ranks gather the weights together. What enters the exchange is the
gradient of one lane alone, a layer at a time: a spot check looks there.

A lane of several micro-batches takes as many passes, and each pass gathers the weights from all ranks, so
ranks make as many as the longest lane of a round takes; a pass beyond a lane's own is a blank, left out of the
sums. What has crossed is added lane by lane until the round's last pass, and only then over the lanes, as whole
weights would have it: that takes the room of one lane's gradient on every rank.
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
from assay.distributed.lane_sum import BucketReady, OnOwnGradients
from assay.distributed.ranks import Ranks
from assay.distributed.swap import all_to_all
from assay.distributed.tree import PartialSums
from assay.records.phase import Phase

OnGradients = Callable[[Sequence[int], Sequence[Float[Tensor, "..."]]], None]
"""Takes indices of parameters and their gradients."""


class RoundPass(NamedTuple):
    """One pass of a round: a lane of each rank, side by side."""

    number: int
    """In the round, from 0."""
    num_passes: Sequence[int]
    """[rank]: that the lanes of the round take; 0 for a rank that has none."""
    ends_step: bool
    """No round follows."""

    @property
    def is_last(self) -> bool:
        """No lane takes more."""
        return self.number + 1 == max(self.num_passes)


class TreeReduceScatter:
    """FSDP2's reduce-scatter, added as a tree over lanes: each rank gets its chunk of the sum."""

    def __init__(self, enters: Callable[[Float[Tensor, "number"]], RoundPass | None]) -> None:
        """`enters` is shown each input before the exchange and says which pass it is of; None: of no step."""
        self._enters = enters
        self._of_lanes: list[Tensor] = []
        """[rank]: this rank's chunk of the gradient of that rank's lane, over the round's passes so far."""
        self._counter = PartialSums()
        """Adds chunks over the step's rounds."""

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Shaped[Tensor, "..."]:
        """A buffer for the exchange."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Float[Tensor, "kept"],
        input_tensor: Float[Tensor, "number"],
        group: dist.ProcessGroup,
        op: object,  # noqa: ARG002
        async_op: bool = False,  # noqa: ARG002
    ) -> None:
        """Take in `input_tensor` [world_size * chunk]; the sum over the step's lanes comes into
        `output_tensor`.

        Zeros come out before the last pass of the last round.
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
    """`on_own_gradients` is told of each pass of a lane by itself."""
    gathers_weights = True
    """`whole_model` waits for the other ranks."""

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        shares: LaneShares,
        *,
        several_passes: bool = False,
        gathers: bool = False,
        enter_phase: Callable[[Phase], None] = lambda phase: None,
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
        """[position][rank]: passes that the lanes of the step take."""
        self.on_own_gradients: OnOwnGradients | None = None
        """Told of the gradients of each pass of each lane before they are added to others. The indices count on
        over the passes: parameter 3 of the second pass is number `num_parameters + 3`."""
        self._is_separate = False
        self._separate_hook: OnGradients | None = None
        self._ranks = ranks
        self.enter_phase = enter_phase
        # It warns of changes in place to what the model returns; a method never makes any.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
        self._whole = copy.deepcopy(model).requires_grad_(False) if gathers else None
        mesh = DeviceMesh.from_group(ranks.inner, ranks.device.type)
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

    def _enters(self, indices: list[int], packed: Float[Tensor, "number"]) -> RoundPass | None:
        """Shows a layer's gradients to who wants them; the pass that they are of, None if of no step."""
        hook = self._separate_hook if self._is_separate else self._own_gradient_hook()
        if hook is not None:
            shapes = [self._parameters[index].shape for index in indices]
            numbers = [self._index * len(self._parameters) + index for index in indices]
            hook(numbers, unpacked(packed, shapes, self._ranks.world_size))
        if self._is_separate:
            return None
        return RoundPass(self._index, self._num_passes[self._position], self._position + 1 == self.shares.most)

    def _own_gradient_hook(self) -> OnGradients | None:
        """Who wants the gradients of this rank's own lane in this pass; a blank's are nobody's."""
        if self.on_own_gradients is None or self._index >= self._num_passes[self._position][self._ranks.rank]:
            return None
        return partial(self.on_own_gradients, self._position)

    @torch.no_grad()
    def whole_model(self) -> nn.Module:
        """A copy that has all weights, gathered now."""
        assert self._whole is not None, "nobody said that weights would be gathered"
        for whole, sharded in zip(self._whole.parameters(), self.module.parameters(), strict=True):
            whole.copy_(sharded.full_tensor() if isinstance(sharded, DTensor) else sharded)
        return self._whole

    def seen_alone(self, num_positions: int) -> range:
        """All: a lane is exchanged by itself."""
        return range(num_positions)

    def most_passes(self, num_passes: int) -> int:
        """The most that any rank asks for; all ranks call it together."""
        return max(count for [count] in self._ranks.all_gather_numbers([num_passes])) if self._several_passes else 1

    @contextmanager
    def separate_pass(self, index: int, hook: OnGradients | None) -> Iterator[None]:
        """Pass number `index` over a lane that is no part of the step: `hook` is told of its gradients, `.grad`
        is not.

        The weights are gathered from all ranks, so all go through it together; they may compute any lane each.
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
        """As many passes for each round as the longest lane of any rank there takes: in the last, perhaps for
        no lane of this one."""
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

    def step_is_done(self) -> float:
        """Returns the seconds that this rank waited since: none, what it waits for lies within backward."""
        assert all(parameter.grad is not None for parameter in self._parameters), "a parameter took no part"
        self.enter_phase("communication")
        return 0.0

    def buckets(self) -> list[BucketReady]:
        """None: layers cross the ranks one by one, lane after lane."""
        return []

    def close(self) -> None:
        """Nothing to stop."""


def unpacked(
    packed: Float[Tensor, "number"], shapes: Sequence[torch.Size], world_size: int
) -> list[Float[Tensor, "..."]]:
    """The gradients of a layer that FSDP2 has packed for its exchange.

    It pads each one's first dimension to a multiple of `world_size` and cuts it into as many chunks; `packed`
    [world_size * chunk] has, for each rank, the chunks of all gradients one after another.
    """
    of_ranks = packed.view(world_size, -1)
    widths = [-(-shape[0] // world_size) * shape[1:].numel() for shape in shapes]
    assert sum(widths) == of_ranks.shape[1], f"{of_ranks.shape[1]} numbers a rank, {sum(widths)} expected"
    parts = torch.split(of_ranks, widths, dim=1)
    return [part.contiguous().view(-1)[: shape.numel()].view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a transformer: what stands in a list of modules is gathered and freed as one."""
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return [block for blocks in lists for block in blocks]
