"""The sum of a step's gradients over all lanes, as a communication hook of DDP.

DDP calls the hook with a bucket of the last local lane's gradients as soon as backward has filled it. The hook
completes the rank's own subtree (see `tree`), then exchanges with the other ranks:

    bucket of this rank -> all-to-all: slice i of every rank goes to rank i
                        -> rank i adds the slices as a tree over ranks
                        -> all-gather of the finished slices

which moves the bytes of a ring all-reduce, but adds in an order that no world size can change. One thread does
the exchanges in the order of the buckets (the same on all ranks), while backward goes on with the next bucket.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from assay.records.run import Phase
from assay.training.parallel.ranks import Ranks
from assay.training.parallel.tree import PartialSums, sum_as_tree

GradientSum = Literal["tree", "all_reduce"]
"""`tree`: the same bits at every world size. `all_reduce`: the backend's order; for comparison."""

BUCKET_MB = 25


class LaneSum:
    """Wraps a model in DDP so that `.grad` after a step's last lane is the sum over the lanes of all ranks."""

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        gradient_sum: GradientSum = "tree",
        *,
        enter_phase: Callable[[Phase], None] = lambda phase: None,
    ) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._index_of: dict[Tensor, int] = {
            parameter: index for index, parameter in enumerate(self._parameters)
        }
        self._partial_sums = PartialSums()
        self._ranks = ranks
        self._gradient_sum = gradient_sum
        self.enter_phase = enter_phase
        self._exchanger = ThreadPoolExecutor(1, thread_name_prefix="gradient-exchange")
        self._side_stream = torch.cuda.Stream() if ranks.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._last_bucket_s = 0.0
        self.module = DistributedDataParallel(
            model,
            process_group=ranks.training,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=BUCKET_MB,
        )
        self.module.register_comm_hook(None, self._reduce_bucket)

    @contextmanager
    def local(self) -> Iterator[None]:
        """Backward passes inside only fill this rank's `.grad`."""
        with self.module.no_sync():
            yield

    def lane_is_done(self) -> None:
        """Take the gradients of a lane that is not the rank's last; `.grad` is empty afterwards."""
        gradients = []
        for parameter in self._parameters:
            assert parameter.grad is not None, "a parameter took no part in the loss"
            gradients.append(parameter.grad)
            parameter.grad = None
        self._partial_sums.add(gradients)

    def step_is_done(self) -> float:
        """Forget the step's partial sums; returns the seconds that backward waited for the exchange alone."""
        self._partial_sums.clear()
        return time.monotonic() - self._last_bucket_s

    def close(self) -> None:
        """Stop the exchanging thread."""
        self._exchanger.shutdown()

    def _reduce_bucket(self, _state: object, bucket: GradBucket) -> Future[Tensor]:
        indices = [self._index_of[parameter] for parameter in bucket.parameters()]
        self._partial_sums.pop_into(bucket.gradients(), indices)
        if bucket.is_last():
            # Backward has nothing left to compute: from here on it waits for the other ranks.
            self._last_bucket_s = time.monotonic()
            self.enter_phase("communication")
        devices = [self._ranks.device] if self._side_stream else None
        reduced: Future[Tensor] = Future(devices=devices)  # type: ignore[arg-type]
        buffer = bucket.buffer()
        if self._ranks.world_size == 1:
            reduced.set_result(buffer)
        else:
            ready = torch.cuda.current_stream().record_event() if self._side_stream else None
            self._exchanger.submit(self._exchange, buffer, ready, reduced)
        return reduced

    def _exchange(self, buffer: Tensor, ready: torch.cuda.Event | None, reduced: Future[Tensor]) -> None:
        try:
            with torch.cuda.stream(self._side_stream):
                if ready is not None:
                    ready.wait()
                if self._gradient_sum == "tree":
                    sum_over_ranks(buffer, self._ranks.training)
                else:
                    dist.all_reduce(buffer, group=self._ranks.training)
                reduced.set_result(buffer)
        except BaseException as error:
            reduced.set_exception(error)  # type: ignore[arg-type]


def sum_over_ranks(buffer: Tensor, group: dist.ProcessGroup) -> None:
    """Replace a flat tensor by its sum over the ranks of `group`, added as a tree over ranks."""
    world_size = dist.get_world_size(group)
    slice_size = -(-buffer.numel() // world_size)
    outgoing = buffer
    if slice_size * world_size != buffer.numel():
        outgoing = buffer.new_zeros(slice_size * world_size)
        outgoing[: buffer.numel()] = buffer
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing, group=group)
    summed = sum_as_tree(incoming.view(world_size, slice_size).unbind())
    dist.all_gather_single(outgoing, summed.contiguous(), group=group)
    if outgoing is not buffer:
        buffer.copy_(outgoing[: buffer.numel()])
