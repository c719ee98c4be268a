"""The sum of a step's gradients over all lanes, as a communication hook of DDP.

DDP calls the hook with a bucket of the last local lane's gradients as soon as backward has filled it. The hook
completes the rank's own subtree (see `tree`), then exchanges with the other ranks:

    bucket of this rank -> halving: swap halves with rank XOR 1, then quarters with rank XOR 2, ...; add
                        -> doubling: hand the finished stretches back the same way

which moves the bytes of a ring all-reduce, but adds in an order that no world size can change. One thread does
the exchanges in the order of the buckets (the same on all ranks), while backward goes on with the next bucket.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Literal

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from assay.records.phase import Phase
from assay.training.parallel.ranks import Ranks
from assay.training.parallel.swap import Transfer, swap
from assay.training.parallel.tree import PartialSums

GradientSum = Literal["tree", "all_reduce"]
"""`tree`: the same bits at every world size. `all_reduce`: the backend's order; for comparison."""

BUCKET_MB = 25

OnOwnGradients = Callable[[int, Sequence[int], Sequence[Float[Tensor, "..."]]], None]
"""Takes the lane's position among the rank's lanes, indices of parameters, and their gradients."""


class LaneSum:
    """Wraps a model in DDP so that `.grad` after a step's last lane is the sum over the lanes of all ranks."""

    interleaves = False
    """A rank's lanes are an aligned run, so that it computes a whole subtree by itself."""
    adds_passes = True
    """`on_own_gradients` is told of a lane's gradient over all of its passes."""
    gathers_weights = False
    """Every rank has all of them."""

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
        self._lanes_in_grad = 0
        self._position = 0
        self._num_passes: tuple[int, ...] = ()
        self.on_own_gradients: OnOwnGradients | None = None
        """Told of gradients of a single lane before they are added to others: those of the positions in
        `seen_alone`, and of the last one, where other lanes' are in them unless it is the only one."""
        assert ranks.outer is not None, "these ranks shard their weights"
        self._group = ranks.outer
        self._ranks = ranks
        self._gradient_sum = gradient_sum
        self.enter_phase = enter_phase
        self._exchanger = ThreadPoolExecutor(1, thread_name_prefix="gradient-exchange")
        self._side_stream = torch.cuda.Stream() if ranks.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._last_bucket_s = 0.0
        self.module = DistributedDataParallel(
            model,
            process_group=self._group,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=BUCKET_MB,
        )
        self.module.register_comm_hook(None, self._reduce_bucket)

    def whole_model(self) -> nn.Module:
        """The model below the wrapper."""
        model: nn.Module = self.module.module
        return model

    def seen_alone(self, num_positions: int) -> range:
        """Positions among a rank's lanes whose gradients `on_own_gradients` is told of alone."""
        return range(0, num_positions, 2)

    def begin_step(self, num_backwards: Sequence[int]) -> Sequence[int]:
        """How many backward passes each lane takes; this rank waits for nobody's."""
        self._num_passes = tuple(num_backwards)
        return self._num_passes

    @contextmanager
    def backward_pass(self, position: int, index: int) -> Iterator[None]:
        """One forward and backward of the rank's lane number `position`; the step's very last is exchanged."""
        if index == 0:
            self._begin_lane(position)
        last_lane = len(self._num_passes) - 1
        exchanges = position == last_lane and index == self._num_passes[last_lane] - 1
        with nullcontext() if exchanges else self.module.no_sync():
            yield

    def _begin_lane(self, position: int) -> None:
        """Make room in `.grad` for a lane.

        The left sibling of an odd one stays there if one backward pass follows: then autograd makes the
        addition of the tree's lowest level itself, while the numbers are warm in the cache.
        """
        if self.on_own_gradients is not None and position % 2:
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            self.on_own_gradients(position - 1, list(range(len(gradients))), gradients)
        self._position = position
        if position and (position % 2 == 0 or self._num_passes[position] > 1):
            self._take_gradients()
        self._lanes_in_grad += 1

    def _take_gradients(self) -> None:
        gradients = []
        for parameter in self._parameters:
            assert parameter.grad is not None, "a parameter took no part in the loss"
            gradients.append(parameter.grad)
            parameter.grad = None
        self._partial_sums.add(gradients, self._lanes_in_grad)
        self._lanes_in_grad = 0

    def step_is_done(self) -> float:
        """Forget the step's partial sums; returns the seconds that backward waited for the exchange alone."""
        self._partial_sums.clear()
        self._lanes_in_grad = 0
        return time.monotonic() - self._last_bucket_s

    def close(self) -> None:
        """Stop the exchanging thread."""
        self._exchanger.shutdown()

    def _reduce_bucket(self, _state: object, bucket: GradBucket) -> Future[Tensor]:
        indices = [self._index_of[parameter] for parameter in bucket.parameters()]
        if self.on_own_gradients is not None:
            self.on_own_gradients(self._position, indices, bucket.gradients())
        self._partial_sums.add_to(bucket.gradients(), indices, self._lanes_in_grad)
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

    def _exchange(
        self,
        buffer: Float[Tensor, "number"],
        ready: torch.cuda.Event | None,
        reduced: Future[Float[Tensor, "number"]],
    ) -> None:
        try:
            with torch.cuda.stream(self._side_stream):
                if ready is not None:
                    ready.wait()
                if self._gradient_sum == "tree":
                    sum_over_ranks(buffer, self._group)
                else:
                    dist.all_reduce(buffer, group=self._group)
                reduced.set_result(buffer)
        except BaseException as error:
            reduced.set_exception(error)  # type: ignore[arg-type]


def sum_over_ranks(buffer: Float[Tensor, "number"], group: dist.ProcessGroup) -> None:
    """Replace a flat tensor by its sum over the ranks of `group`, added as a tree over ranks.

    Recursive halving, then doubling. In round k a rank and its partner (rank XOR 2^k) split the stretch that
    they both hold, and each adds the other's half to its own: after it, a stretch is the sum over an aligned
    block of 2^(k+1) ranks. Then the rounds are walked back, handing the finished halves over.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    start, stop = 0, buffer.numel()
    rounds: list[tuple[int, Tensor, Tensor]] = []
    distance = 1
    while distance < world_size:
        partner, middle = rank ^ distance, (start + stop) // 2
        low, high = buffer[start:middle], buffer[middle:stop]
        is_low = rank < partner
        kept, given = (low, high) if is_low else (high, low)
        received = torch.empty_like(kept)
        swap([Transfer(partner, given)], [Transfer(partner, received)], group)
        kept += received
        rounds.append((partner, kept, given))
        start, stop = (start, middle) if is_low else (middle, stop)
        distance *= 2
    for partner, kept, given in reversed(rounds):
        swap([Transfer(partner, kept)], [Transfer(partner, given)], group)
