"""Sums a step's gradients over all lanes, in a communication hook of DDP.

A rank works on its blocks of lanes one after another, the largest last, and sums each block (see `tree`). DDP calls the
hook with a bucket of the last lane's gradients as soon as backward has filled it. The hook completes the last block's
sum; then ranks exchange the sums of all blocks by the `exchange_plan`, whose order of additions does not depend on the
world size. One thread runs the exchanges in the order of the buckets (the same on all ranks) while backward goes on.

The early stages of the exchange, which need no largest block, start as soon as this rank has their blocks, with the
buckets of the last steps. So ranks wait for the exchange of one block only:

    smallest | smaller block | largest block, lane by lane ... last backward
             |-- stage 1 of all buckets --|-- stage 2 --| |-- bucket 1 --|-- bucket 2 --|
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from typing import Any, Literal, Protocol
from weakref import ReferenceType, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from assay.base.shapes import Float
from assay.data.loader.lane_shares import LaneShares
from assay.distributed.exchange import Exchange, FlatLayout, sum_over_ranks
from assay.distributed.exchange_plan import early_positions, exchange_plan
from assay.distributed.ranks import Ranks
from assay.distributed.tree import Gradients, PartialSums
from assay.records.phase import EnterPhase

GradientSum = Literal["tree", "all_reduce"]
"""`tree`: the same bits at every world size. `all_reduce`: the backend's order; for comparison."""

_OWN_BUFFERS: dict[str, Any] = {
    max({"forward_sync_buffers", "broadcast_buffers"} & signature(DistributedDataParallel).parameters.keys()): False
}
"""`forward_sync_buffers` is the name from torch 2.13 on."""
BUCKET_MB = 25

OnOwnGradients = Callable[[int, Sequence[int], Sequence[Float[Tensor, "..."]]], None]
"""Receives the lane's position among the rank's lanes, parameter indices, and their gradients."""


class LaneGradients(Protocol):
    """Sums the gradients of all lanes of all ranks: replicated (`LaneSum`) or sharded (`ShardedLaneSum`)."""

    shares: LaneShares
    """Lanes of each rank."""
    enter_phase: EnterPhase
    gathers_weights: bool
    """True if `whole_model` is a collective."""
    on_own_gradients: OnOwnGradients | None
    """Called with gradients of this rank's lanes before they are added to others."""

    @property
    def adds_passes(self) -> bool:
        """True if `on_own_gradients` gets the sum over a lane's passes; False if it gets each pass."""
        ...

    @property
    def module(self) -> nn.Module: ...

    def whole_model(self) -> nn.Module:
        """Return the unwrapped model with all weights; all ranks must call this together."""
        ...

    def seen_alone(self, num_positions: int) -> Sequence[int]:
        """Return the positions among the rank's lanes whose gradients `on_own_gradients` sees alone."""
        ...

    def begin_step(self, num_backwards: Sequence[int]) -> Sequence[int]:
        """Tell how many backward passes each lane of this rank needs; return how many the rank must make.

        The rank makes more if another rank's lane needs more, because sharded ranks run passes together; and it
        makes passes for an extra lane if other ranks have one more.
        """
        ...

    def backward_pass(self, position: int, index: int) -> AbstractContextManager[None]:
        """Wrap forward and backward pass `index` of the rank's lane `position`; passes run in order."""
        ...

    def backward(self, loss: Float[Tensor, ""]) -> None:
        """Compute the gradient of a pass, within `backward_pass`."""
        ...

    def step_is_done(self) -> float:
        """Finish the step: `.grad` is complete. Return the seconds that the rank waited for others."""
        ...

    def buckets(self) -> Sequence[tuple[int, float]]:
        """Return the buckets in which the last step's gradients were exchanged, in order.

        Each is its bytes, and the seconds from its completion by backward to that of the last bucket.
        """
        ...

    def close(self) -> None: ...


class LaneSum:
    """Wraps a model in DDP so that `.grad` after a step's last lane is the sum over the lanes of all ranks."""

    adds_passes = True
    """`on_own_gradients` gets a lane's gradient summed over its passes."""
    gathers_weights = False

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        shares: LaneShares,
        gradient_sum: GradientSum = "tree",
        *,
        enter_phase: EnterPhase = lambda phase: None,
    ) -> None:
        self._parameters = trained_parameters(model)
        self._index_of: dict[Tensor, int] = {parameter: index for index, parameter in enumerate(self._parameters)}
        self.shares = shares
        blocks = shares.blocks_of(ranks.rank)
        self._num_blocks = len(blocks)
        self._block_positions = [block_position for block in blocks for block_position in range(block.size)]
        """[position]: the lane's position within its block."""
        self._partial_sums = PartialSums()
        self._earlier_blocks: list[Gradients] = []
        """Sums of finished blocks, in order."""
        self._lanes_in_grad = 0
        self._position = 0
        self._num_passes: tuple[int, ...] = ()
        self.on_own_gradients: OnOwnGradients | None = None
        """Called with gradients of a single lane before they are added to others: those of the positions in
        `seen_alone`, and of the last one, which include other lanes unless it is alone."""
        assert ranks.outer is not None, "these ranks shard their weights"
        self._group = ranks.outer
        self._ranks = ranks
        # In early stages a rank with one block sends and receives nothing, which NCCL may not support.
        self._plan = exchange_plan(shares, early=ranks.device.type == "cpu" and gradient_sum == "tree")
        self._early_at = early_positions(shares, ranks.rank) if self._plan.stages else ()
        """[stage]: the position at which this rank enters it."""
        self._layouts: list[FlatLayout] = []
        """Layouts of the current step's buckets so far."""
        self._last_layouts: list[FlatLayout] = []
        """Layouts of the last step's buckets."""
        self._is_layout_stable = False
        """True if the last two steps had the same buckets: DDP rebuilds them after the first step."""
        self._started: list[Exchange] = []
        """[bucket]: its started exchange."""
        self._gradient_sum = gradient_sum
        self.enter_phase = enter_phase
        self._exchanger = ThreadPoolExecutor(1, thread_name_prefix="gradient-exchange")
        self._side_stream = torch.cuda.Stream() if ranks.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._ready_s: list[float] = []
        """[bucket]: when backward filled it in the last step."""
        self.module = DistributedDataParallel(
            model, process_group=self._group, **_OWN_BUFFERS, gradient_as_bucket_view=True, bucket_cap_mb=BUCKET_MB
        )
        self.module.register_comm_hook(ref(self), _reduce_bucket)

    def whole_model(self) -> nn.Module:
        model: nn.Module = self.module.module
        return model

    def seen_alone(self, num_positions: int) -> Sequence[int]:
        """Return the positions whose gradients `on_own_gradients` sees alone."""
        return [position for position in range(num_positions) if self._block_positions[position] % 2 == 0]

    def begin_step(self, num_backwards: Sequence[int]) -> Sequence[int]:
        """Set the number of backward passes of each lane; this rank needs no more than these."""
        self._num_passes = tuple(num_backwards)
        self._ready_s.clear()
        return self._num_passes

    def buckets(self) -> list[tuple[int, float]]:
        sizes = [layout.like[0] * layout.like[1].itemsize for layout in self._last_layouts]
        return [(size, self._ready_s[-1] - ready_s) for size, ready_s in zip(sizes, self._ready_s, strict=True)]

    @contextmanager
    def backward_pass(self, position: int, index: int) -> Iterator[None]:
        """Wrap one forward and backward pass; the step's last one starts the exchange."""
        if index == 0:
            self._begin_lane(position)
        last_lane = len(self._num_passes) - 1
        exchanges = position == last_lane and index == self._num_passes[last_lane] - 1
        with nullcontext() if exchanges else self.module.no_sync():
            yield

    def backward(self, loss: Float[Tensor, ""]) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def _begin_lane(self, position: int) -> None:
        """Free `.grad` for a lane.

        A left sibling stays there if one backward pass follows: autograd then makes the addition of the tree's
        lowest level, while the numbers are in the cache.
        """
        block_position = self._block_positions[position]
        if self.on_own_gradients is not None and position and self._block_positions[position - 1] % 2 == 0:
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            self.on_own_gradients(position - 1, list(range(len(gradients))), gradients)
        self._position = position
        if position and (block_position % 2 == 0 or self._num_passes[position] > 1):
            self._take_gradients()
        if position and block_position == 0:
            self._earlier_blocks.append(self._partial_sums.take())
        if self._is_layout_stable:
            for stage in [stage for stage, block_position in enumerate(self._early_at) if block_position == position]:
                self._begin_stage(stage)
        self._lanes_in_grad += 1

    def _begin_stage(self, stage: int) -> None:
        """Start a stage of the exchange with the sum of the finished block, if this rank has one for it."""
        slot = len(self._early_at) - stage
        done = self._earlier_blocks.pop(0) if slot < self._num_blocks else None
        if stage == 0:
            self._started = [Exchange(layout.empty(), self._plan, self._group) for layout in self._last_layouts]
        for started, layout in zip(self._started, self._last_layouts, strict=True):
            sums = {} if done is None else {slot: layout.laid_out(done)}
            self._exchanger.submit(started.begin, sums)

    def _take_gradients(self) -> None:
        gradients = []
        for parameter in self._parameters:
            assert parameter.grad is not None, "a parameter took no part in the loss"
            gradients.append(parameter.grad)
            parameter.grad = None
        self._partial_sums.add(gradients, self._lanes_in_grad)
        self._lanes_in_grad = 0

    def step_is_done(self) -> float:
        """Reset the step's state; return the seconds that backward waited for the exchange."""
        self._partial_sums.clear()
        self._earlier_blocks.clear()
        self._started.clear()
        self._is_layout_stable = self._layouts == self._last_layouts
        self._last_layouts, self._layouts = self._layouts, []
        self._lanes_in_grad = 0
        return time.monotonic() - self._ready_s[-1]

    def close(self) -> None:
        self._exchanger.shutdown()

    def reduce_bucket(self, bucket: GradBucket) -> Future[Tensor]:
        """Return the future of a bucket's sum over all lanes; DDP calls this when backward has filled it."""
        indices = [self._index_of[parameter] for parameter in bucket.parameters()]
        if self.on_own_gradients is not None:
            self.on_own_gradients(self._position, indices, bucket.gradients())
        self._partial_sums.add_to(bucket.gradients(), indices, self._lanes_in_grad)
        layout = FlatLayout.of(bucket.buffer(), bucket.gradients(), indices)
        started = self._started_exchange(layout)
        # Blocks that were sent early are no longer in the list.
        earlier = [layout.laid_out(gradients) for gradients in reversed(self._earlier_blocks)]
        self._ready_s.append(time.monotonic())
        if bucket.is_last():
            # Backward is done: from here on this rank waits for the others.
            self.enter_phase("communication")
        devices = [self._ranks.device] if self._side_stream else None
        reduced: Future[Tensor] = Future(devices=devices)  # type: ignore[arg-type]
        if self._ranks.world_size == 1:
            reduced.set_result(bucket.buffer())
        else:
            ready = torch.cuda.current_stream().record_event() if self._side_stream else None
            self._exchanger.submit(self._exchange, started, [bucket.buffer(), *earlier], ready, reduced)
        return reduced

    def _started_exchange(self, layout: FlatLayout) -> Exchange | None:
        """Return the started exchange of the next bucket; None if there is none."""
        number = len(self._layouts)
        self._layouts.append(layout)
        if not self._started:
            return None
        assert layout == self._last_layouts[number], "DDP rebuilt its buckets"
        return self._started[number]

    def _exchange(
        self,
        started: Exchange | None,
        sums: list[Float[Tensor, "number"]],
        ready: torch.cuda.Event | None,
        reduced: Future[Float[Tensor, "number"]],
    ) -> None:
        try:
            with torch.cuda.stream(self._side_stream):
                if ready is not None:
                    ready.wait()
                if started is not None:
                    started.finish(dict(enumerate(sums)))
                elif self._gradient_sum == "tree":
                    sum_over_ranks(sums, self._plan, self._group)
                else:
                    for of_block in sums[1:]:
                        sums[0] += of_block
                    dist.all_reduce(sums[0], group=self._group)
                reduced.set_result(sums[0])
        except BaseException as error:
            reduced.set_exception(error)  # type: ignore[arg-type]


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that have gradients, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _reduce_bucket(lane_sum: "ReferenceType[LaneSum]", bucket: GradBucket) -> Future[Tensor]:
    """The hook. It holds a weak reference, because DDP keeps the hook's state alive and C++ references are not
    garbage-collected."""
    instance = lane_sum()
    assert instance is not None, "the module outlives its backward pass"
    return instance.reduce_bucket(bucket)
