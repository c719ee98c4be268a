"""What is in `.grad` after a step's last lane: the sum over the lanes of all ranks, with the bits of one tree.

The reference computes each lane by itself, adds its passes in their order, and brackets the lanes by number.
"""

import gc
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from assay.distributed import lane_sum as lane_sum_module
from assay.distributed.exchange import Exchange, sum_over_ranks
from assay.distributed.exchange_plan import OWN, exchange_plan
from assay.distributed.flat_lane_sum import FlatLaneSum
from assay.distributed.lane_sum import LaneSum
from assay.distributed.ranks import Ranks
from assay.distributed.sharded_lane_sum import ShardedLaneSum
from forked_ranks import on_ranks
from shared_lanes import shares_of
from variants import slow

NUM_LANES = 8
ONE_PASS = (1,) * NUM_LANES
SEVERAL = (1, 3, 2, 1, 2, 1, 1, 2)
STEPS = 4
"""DDP makes its buckets anew behind the first; two alike, and sums travel early from the fourth on."""
Notified = list[tuple[int, dict[int, np.ndarray]]]
"""[(position, {parameter: gradient})], as `on_own_gradients` was told."""


class Network(nn.Module):
    """Odd sizes, so that shards are of unequal lengths; one weight that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(5, 5) for _ in range(2)])
        self.head = nn.Linear(5, 3)
        self.fixed = nn.Parameter(torch.ones(5), requires_grad=False)

    def forward(self, rows: Tensor) -> Tensor:
        for block in self.blocks:
            rows = torch.tanh(block(rows)) * self.fixed
        return self.head(rows).square().sum()


def rows_of(step: int, lane: int, index: int) -> Tensor:
    """Lanes differ in size by powers of ten, so that every other bracketing has other bits."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * lane + index)
    return torch.randn(4, 5, generator=generator) * 10.0 ** (lane % 3)


def lane_gradient(model: nn.Module, step: int, lane: int, num_passes: int) -> list[Tensor]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    passes = [torch.autograd.grad(model(rows_of(step, lane, i)), trained) for i in range(num_passes)]
    total = [gradient.clone() for gradient in passes[0]]
    for more in passes[1:]:
        torch._foreach_add_(total, list(more))
    return total


@cache
def expected(passes: tuple[int, ...], step: int) -> list[np.ndarray]:
    parts = [lane_gradient(Network(), step, lane, passes[lane]) for lane in range(NUM_LANES)]
    while len(parts) > 1:
        parts = [
            [a + b for a, b in zip(left, right, strict=True)]
            for left, right in zip(parts[::2], parts[1::2], strict=True)
        ]
    return [gradient.numpy() for gradient in parts[0]]


def whole(gradient: Tensor) -> np.ndarray:
    return (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).clone().numpy()


def backward(lane_sum, lanes: Sequence[int], passes: Sequence[int], step: int) -> None:
    own = [passes[lane] for lane in lanes]
    for position, num_passes in enumerate(lane_sum.begin_step(own)):
        for index in range(num_passes):
            with lane_sum.backward_pass(position, index):
                is_blank = position >= len(own) or index >= own[position]
                loss = lane_sum.module(rows_of(step, lanes[0 if is_blank else position], index))
                lane_sum.backward(0.0 * loss if is_blank else loss)


def steps_of(lane_sum, ranks: Ranks, passes: Sequence[int]) -> list[list[np.ndarray]]:
    """The whole gradient after each step."""
    lanes = lane_sum.shares.of_rank(ranks.rank)
    found = []
    for step in range(STEPS):
        backward(lane_sum, lanes, passes, step)
        waited_s = lane_sum.step_is_done()
        assert 0 <= waited_s < 30
        trained = [parameter for parameter in lane_sum.module.parameters() if parameter.requires_grad]
        found.append([whole(parameter.grad) for parameter in trained])
        for parameter in trained:
            parameter.grad = None
    return found


def replicated(ranks: Ranks, passes: Sequence[int], gradient_sum: str = "tree", loads: tuple[int, ...] | None = None):
    phases: list[str] = []
    shares = replace(shares_of(ranks, NUM_LANES), explicit_loads=loads)
    lane_sum = LaneSum(Network(), ranks, shares, gradient_sum, enter_phase=phases.append)
    found = steps_of(lane_sum, ranks, passes)
    lane_sum.close()
    assert phases == ["communication"] * STEPS
    return found


def flat(ranks: Ranks, passes: Sequence[int], loads: tuple[int, ...] | None = None):
    phases: list[str] = []
    shares = replace(shares_of(ranks, NUM_LANES), explicit_loads=loads)
    found = steps_of(FlatLaneSum(Network(), ranks, shares, enter_phase=phases.append), ranks, passes)
    assert phases == ["communication"] * STEPS
    return found


def sharded(ranks: Ranks, passes: Sequence[int]):
    phases: list[str] = []
    lane_sum = ShardedLaneSum(
        Network(), ranks, shares_of(ranks, NUM_LANES), several_passes=max(passes) > 1, enter_phase=phases.append
    )
    found = steps_of(lane_sum, ranks, passes)
    lane_sum.close()
    assert phases == ["communication"] * STEPS
    return found


def assert_is_the_tree(of_ranks, passes: tuple[int, ...]) -> None:
    for of_rank in of_ranks:
        for step, gradients in enumerate(of_rank):
            for gradient, target in zip(gradients, expected(passes, step), strict=True):
                np.testing.assert_array_equal(gradient, target)


@pytest.mark.parametrize(
    ("world_size", "passes"),
    [(1, ONE_PASS), (1, SEVERAL), (2, ONE_PASS), (4, SEVERAL), (3, SEVERAL), (5, ONE_PASS)],
)
def test_whole_weights_get_the_bits_of_the_tree(world_size, passes, tmp_path: Path) -> None:
    assert_is_the_tree(on_ranks(world_size, partial(replicated, passes=passes), tmp_path), passes)


@pytest.mark.parametrize(
    ("passes", "loads"), [(ONE_PASS, (8,)), (SEVERAL, (8,)), (SEVERAL, (1, 7)), (SEVERAL, (3, 3, 2))]
)
def test_flat_gradients_have_the_bits_of_the_tree(passes, loads, tmp_path: Path) -> None:
    found = on_ranks(len(loads), partial(flat, passes=passes, loads=loads), tmp_path)
    assert_is_the_tree(found, passes)


class NegativeZero(nn.Module):
    """Its gradient is -0.0, which an addition to a buffer of zeros would turn into 0.0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, _: Tensor) -> Tensor:
        return (self.weight * -0.0).sum()


def signs_of_zeros(ranks: Ranks) -> list[list[bool]]:
    found = []
    for kind in (LaneSum, FlatLaneSum):
        lane_sum = kind(model := NegativeZero(), ranks, shares_of(ranks, 4))
        backward(lane_sum, range(4), (1, 2, 1, 1), 0)
        lane_sum.step_is_done()
        found.append(model.weight.grad.signbit().tolist())
        lane_sum.close()
    return found


def test_flat_gradients_keep_the_sign_of_a_zero(tmp_path: Path) -> None:
    assert on_ranks(1, signs_of_zeros, tmp_path) == [[[True] * 3] * 2]


@pytest.mark.parametrize(
    "case", [(3, SEVERAL), *slow((2, ONE_PASS), (2, SEVERAL), (4, SEVERAL), (6, ONE_PASS))], ids=str
)
def test_sharded_weights_get_the_bits_of_the_tree(case, tmp_path: Path) -> None:
    world_size, passes = case
    found = on_ranks(world_size, partial(sharded, passes=passes), tmp_path, shards_weights=True)
    assert_is_the_tree(found, passes)


@pytest.mark.parametrize("passes", [ONE_PASS, SEVERAL])
def test_a_rank_of_three_blocks_gets_the_bits_of_the_tree(passes, tmp_path: Path) -> None:
    found = on_ranks(2, partial(replicated, passes=passes, loads=(1, 7)), tmp_path)
    assert_is_the_tree(found, passes)


def stages_before_lanes(ranks: Ranks, cut: Mapping[str, Any], expected: Sequence[int]) -> list[list[int]]:
    """[step][position]: how many early stages were over before this rank began that lane, behind a 0; once sums
    travel early, `wanted` of them are waited for."""
    shares = replace(shares_of(ranks, NUM_LANES), **cut)
    lane_sum = LaneSum(Network(), ranks, shares)
    lanes, over, found = shares.of_rank(ranks.rank), threading.Semaphore(0), []
    begin = Exchange.begin

    def noted(exchange: Exchange, sums: Mapping[int, Tensor]) -> None:
        begin(exchange, sums)
        over.release()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Exchange, "begin", noted)
        for step in range(STEPS + 1):
            lane_sum.begin_step([1] * len(lanes))
            found.append([0])
            for position, lane in enumerate(lanes):
                with lane_sum.backward_pass(position, 0):
                    due = expected[position] - found[-1][-1] if step >= STEPS - 1 else 0
                    found[-1].append(found[-1][-1] + sum(over.acquire(timeout=20.0) for _ in range(due)))
                    lane_sum.module(rows_of(step, lane, 0)).backward()
            lane_sum.step_is_done()
    lane_sum.close()
    assert not over.acquire(blocking=False)
    return found


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ({"explicit_loads": (1, 7)}, [(2,), (0, 1, 1, 2, 2, 2, 2)]),
        ({}, [(0, 1, 1), (0, 1, 1), (0, 1)]),
        ({"nodes": (1, 1, 1)}, [(0, 1, 1), (0, 1, 1), (0, 1)]),
        ({"nodes": (2, 1)}, [(0, 1, 1), (0, 1, 1), (0, 1)]),
    ],
)
def test_what_is_done_first_travels_while_the_next_block_is_computed(cut, expected, tmp_path) -> None:
    def program(ranks: Ranks) -> list[list[int]]:
        return stages_before_lanes(ranks, cut, expected[ranks.rank])

    for of_rank, its in zip(on_ranks(len(expected), program, tmp_path), expected, strict=True):
        assert of_rank[0] == [0] * (1 + len(its))
        assert [step[1:] for step in of_rank[-2:]] == [[*its]] * 2


def is_held(ranks: Ranks) -> bool:
    """Whether what was closed is still held by DDP, and the model and the group's threads with it."""
    lane_sum = LaneSum(Network(), ranks, shares_of(ranks, 1))
    lane_sum.begin_step([1])
    with lane_sum.backward_pass(0, 0):
        lane_sum.module(rows_of(0, 0, 0)).backward()
    lane_sum.close()
    watched = weakref.ref(lane_sum)
    del lane_sum
    gc.collect()
    return watched() is not None


def test_what_is_closed_is_collected(tmp_path: Path) -> None:
    assert on_ranks(1, is_held, tmp_path) == [False]


def by_the_backend(ranks: Ranks) -> list[list[np.ndarray]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_sum_module, "Exchange", None)  # nothing travels by the plan, and nothing early
        return replicated(ranks, SEVERAL, "all_reduce")


def test_the_backends_sum_is_near_the_tree_and_the_same_on_all_ranks(tmp_path: Path) -> None:
    of_ranks = on_ranks(3, by_the_backend, tmp_path)
    for step in range(STEPS):
        for *found, target in zip(*(of_rank[step] for of_rank in of_ranks), expected(SEVERAL, step), strict=True):
            np.testing.assert_allclose(found[0], target, rtol=1e-3, atol=1e-2)
            for other in found[1:]:
                np.testing.assert_array_equal(other, found[0])


def test_a_part_of_the_loss_that_left_out_a_weight_is_found(tmp_path: Path) -> None:
    def without_the_head(ranks: Ranks) -> None:
        lane_sum = LaneSum(Network(), ranks, shares_of(ranks, 4))
        lane_sum.begin_step([1, 1, 1, 1])
        for position in range(3):
            with lane_sum.backward_pass(position, 0):
                lane_sum.module.module.blocks[0](torch.ones(1, 5)).sum().backward()

    with pytest.raises(AssertionError, match="a parameter took no part in the loss"):
        on_ranks(1, without_the_head, tmp_path)


def hook(ranks: Ranks, lane_sum, passes: Sequence[int]) -> Notified:
    """What is told of the rank's own lanes in a step, and that nothing is told when nobody asks."""
    heard: Notified = []

    def hear(position: int, indices: Sequence[int], gradients: Sequence[Tensor]) -> None:
        parts = {index: part.clone().numpy() for index, part in zip(indices, gradients, strict=True)}
        heard.append((position, parts))

    lanes = lane_sum.shares.of_rank(ranks.rank)
    lane_sum.on_own_gradients = hear
    backward(lane_sum, lanes, passes, 0)
    lane_sum.step_is_done()
    num_seen, lane_sum.on_own_gradients = len(heard), None
    backward(lane_sum, lanes, passes, 1)
    lane_sum.step_is_done()
    assert len(heard) == num_seen
    lane_sum.close()
    return heard


def of_position(heard: Notified, position: int) -> list[np.ndarray]:
    parts: dict[int, np.ndarray] = {}
    for where, some in heard:
        parts |= some if where == position else {}
    return [parts[index] for index in sorted(parts)]


@pytest.mark.parametrize(("world_size", "kind"), [(1, LaneSum), (8, LaneSum), (1, FlatLaneSum)])
def test_the_gradients_of_single_lanes_are_shown_before_they_are_added(world_size, kind, tmp_path: Path) -> None:
    found = on_ranks(
        world_size,
        lambda ranks: hook(ranks, kind(Network(), ranks, shares_of(ranks, NUM_LANES)), SEVERAL),
        tmp_path,
    )
    alone = range(0, NUM_LANES // world_size, 2)
    for rank, heard in enumerate(found):
        for position in alone:
            lane = rank * NUM_LANES // world_size + position
            expected = lane_gradient(Network(), 0, lane, SEVERAL[lane])
            for gradient, part in zip(of_position(heard, position), expected, strict=True):
                np.testing.assert_array_equal(gradient, part.numpy())


def shards_seen(ranks: Ranks) -> tuple[Notified, range]:
    lane_sum = ShardedLaneSum(Network(), ranks, shares_of(ranks, NUM_LANES), several_passes=True)
    return hook(ranks, lane_sum, SEVERAL), lane_sum.seen_alone(4)


def test_the_gradients_of_each_pass_are_shown_where_weights_are_sharded(tmp_path: Path) -> None:
    found = on_ranks(2, shards_seen, tmp_path, shards_weights=True)
    for rank, (heard, alone) in enumerate(found):
        assert alone == range(4)
        for position in alone:
            lane, parts = 2 * position + rank, of_position(heard, position)
            model = Network()
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            expected = [
                gradient
                for index in range(SEVERAL[lane])
                for gradient in torch.autograd.grad(model(rows_of(0, lane, index)), trained)
            ]
            for gradient, part in zip(parts, expected, strict=True):
                np.testing.assert_array_equal(gradient, part.numpy())


def test_where_lanes_are_one_pass_each_a_rank_is_told_of_its_own_alone(tmp_path: Path) -> None:
    def positions(ranks: Ranks) -> set[int]:
        lane_sum = ShardedLaneSum(Network(), ranks, shares_of(ranks, NUM_LANES))
        assert lane_sum.buckets() == [], "layers cross one by one"
        return {position for position, _ in hook(ranks, lane_sum, ONE_PASS)}

    found = on_ranks(3, positions, tmp_path, shards_weights=True)
    assert found == [{0, 1, 2}, {0, 1, 2}, {0, 1}], "the third round has two lanes for three ranks"


def separate_pass(ranks: Ranks) -> tuple[list[np.ndarray], list[np.ndarray], int]:
    """A pass over lane 5 in the midst of a step, then the step's gradient; the most passes of any rank."""
    lane_sum = ShardedLaneSum(Network(), ranks, shares_of(ranks, NUM_LANES), several_passes=True)
    lanes = shares_of(ranks, NUM_LANES).of_rank(ranks.rank)
    backward(lane_sum, lanes, ONE_PASS, 0)
    heard: dict[int, np.ndarray] = {}

    def hear(indices: Sequence[int], gradients: Sequence[Tensor]) -> None:
        heard.update({index: part.clone().numpy() for index, part in zip(indices, gradients, strict=True)})

    with lane_sum.separate_pass(0, hear):
        lane_sum.module(rows_of(0, 5, 0)).backward()
    with lane_sum.separate_pass(1, None):
        lane_sum.module(rows_of(0, 6, 0)).backward()
    lane_sum.step_is_done()
    trained = [parameter for parameter in lane_sum.module.parameters() if parameter.requires_grad]
    return (
        [heard[index] for index in sorted(heard)],
        [whole(parameter.grad) for parameter in trained],
        lane_sum.most_passes(3 + ranks.rank),
    )


def test_a_pass_apart_is_no_part_of_the_step(tmp_path: Path) -> None:
    for heard, gradients, most in on_ranks(2, separate_pass, tmp_path, shards_weights=True):
        for gradient, part in zip(heard, lane_gradient(Network(), 0, 5, 1), strict=True):
            np.testing.assert_array_equal(gradient, part.numpy())
        assert most == 4
        for gradient, target in zip(gradients, expected(ONE_PASS, 0), strict=True):
            np.testing.assert_array_equal(gradient, target)


class Viewed(Network):
    """Returns another shape of what it has computed, as a head does that takes one token of each row."""

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows).view(1)


def warned(ranks: Ranks) -> list[str]:
    """What is said while a step is made."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lane_sum = ShardedLaneSum(Viewed(), ranks, shares_of(ranks, NUM_LANES))
        lanes = shares_of(ranks, NUM_LANES).of_rank(ranks.rank)
        backward(lane_sum, lanes, ONE_PASS, 0)
        lane_sum.step_is_done()
        warnings.warn("of something else", UserWarning, stacklevel=1)
    return [str(warning.message) for warning in caught if warning.category is UserWarning]


def test_who_reads_the_output_is_not_warned_of_what_a_method_never_does(tmp_path: Path) -> None:
    assert on_ranks(2, warned, tmp_path, shards_weights=True) == [["of something else"]] * 2


class Exchanges:
    """Stands for the exchange, and takes its time; notes which are under way, and what they bring."""

    def __init__(self) -> None:
        self.most_at_once = 0
        self.sizes: list[int] = []
        self._under_way = 0

    def __call__(self, largest: Tensor) -> None:
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        self.sizes.append(largest.numel())
        time.sleep(0.02)
        self._under_way -= 1


def exchanged(ranks: Ranks) -> tuple[int, list[int]]:
    """In the second step, from which on DDP has its buckets: of a weight each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_sum_module, "BUCKET_MB", 1e-6)
        lane_sum = LaneSum(Network(), ranks, shares_of(ranks, 4))
        for step in range(2):
            exchanges = Exchanges()
            patch.setattr(Exchange, "finish", lambda _, sums, noted=exchanges: noted(sums[OWN]))
            lane_sum.module.zero_grad()
            backward(lane_sum, range(2), (1, 1), step)
            lane_sum.step_is_done()
        lane_sum.close()
    return exchanges.most_at_once, exchanges.sizes


def test_one_bucket_is_exchanged_after_another_in_the_order_of_backward(tmp_path: Path) -> None:
    """Two at once would meet the other rank's in any order."""
    sizes = [parameter.numel() for parameter in Network().parameters() if parameter.requires_grad]
    assert on_ranks(2, exchanged, tmp_path) == [(1, sizes[::-1])] * 2


class Buffered(Network):
    """With something that each rank keeps for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))


def buffer_after_a_step(ranks: Ranks) -> float:
    model = Buffered()
    lane_sum = LaneSum(model, ranks, shares_of(ranks, NUM_LANES))
    model.seen.fill_(ranks.rank)
    lanes = shares_of(ranks, NUM_LANES).of_rank(ranks.rank)
    backward(lane_sum, lanes, ONE_PASS, 0)
    lane_sum.step_is_done()
    lane_sum.close()
    return model.seen.item()


def test_no_ranks_buffers_overwrite_anothers(tmp_path: Path) -> None:
    assert on_ranks(2, buffer_after_a_step, tmp_path) == [0.0, 1.0]


def num_passes_run(ranks: Ranks) -> tuple[int, list[int]]:
    lane_sum = ShardedLaneSum(Network(), ranks, shares_of(ranks, NUM_LANES))
    return lane_sum.most_passes(3), [*lane_sum.begin_step([1] * lane_sum.shares.loads[ranks.rank])]


def test_without_several_passes_each_lane_takes_one_and_nobody_is_asked_how_many(tmp_path: Path) -> None:
    """Of three ranks some have a lane more; the others make a pass for none beside its."""
    most = -(-NUM_LANES // 3)
    assert on_ranks(3, num_passes_run, tmp_path, shards_weights=True) == [(1, [1] * most)] * 3


def numbers_sent(ranks: Ranks, numbers: int) -> int:
    """By one rank, to have a tensor summed over all."""
    sent: list[int] = []
    make = dist.P2POp

    def counted(operation, tensor: Tensor, **where):
        if operation is dist.isend:
            sent.append(tensor.numel())
        return make(operation, tensor, **where)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "P2POp", counted)
        sum_over_ranks([torch.ones(numbers)], exchange_plan(shares_of(ranks, ranks.world_size)), dist.group.WORLD)
    return sum(sent)


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_tree_sends_no_more_than_a_ring(world_size: int, tmp_path: Path) -> None:
    """Each rank sends every number but its own share twice, which is the least that an all-reduce can do."""
    numbers = 64
    found = on_ranks(world_size, partial(numbers_sent, numbers=numbers), tmp_path)
    assert found == [2 * numbers * (world_size - 1) // world_size] * world_size


def gathered(ranks: Ranks) -> tuple[bool, bool, bool, bool]:
    """Before and after a step's update: whether the copy is the whole model, and whether it is trained."""
    lane_sum = ShardedLaneSum(Network(), ranks, shares_of(ranks, NUM_LANES), gathers=True)
    own, copies = dict(lane_sum.module.named_parameters()), []
    for change in (0.0, 0.5):
        with torch.no_grad():
            for parameter in own.values():
                parameter.add_(change)
        copy = lane_sum.whole_model()
        copies.append(all(np.array_equal(whole(own[name].detach()), item) for name, item in copy.named_parameters()))
    is_trained = any(parameter.requires_grad for parameter in copy.parameters())
    return *copies, copy is lane_sum.module, is_trained


def test_the_whole_model_has_the_weights_of_all_ranks_as_they_are_now(tmp_path: Path) -> None:
    assert on_ranks(2, gathered, tmp_path, shards_weights=True) == [(True, True, False, False)] * 2


def test_the_room_of_all_weights_is_taken_only_where_they_are_gathered(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="constructed without `gathers`"):
        on_ranks(
            2,
            lambda ranks: ShardedLaneSum(Network(), ranks, shares_of(ranks, NUM_LANES)).whole_model(),
            tmp_path,
            shards_weights=True,
        )


def summed_whole(ranks: Ranks) -> tuple[bool, bool, list[int]]:
    """Whether the model is the one that was given, whether gradients lie together, who is seen alone."""
    model = Network()
    lane_sum = LaneSum(model, ranks, shares_of(ranks, 4))
    backward(lane_sum, range(4), (1,) * 4, 0)
    lane_sum.step_is_done()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    positions = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    lane_sum.close()
    return lane_sum.whole_model() is model, len(positions) == 1 < len(gradients), list(lane_sum.seen_alone(4))


def test_whole_weights_have_their_gradients_in_the_buckets_that_are_sent(tmp_path: Path) -> None:
    """A second copy of all gradients would take their room again."""
    assert on_ranks(1, summed_whole, tmp_path) == [(True, True, [0, 2])]


def positions_seen(ranks: Ranks) -> list[int]:
    return [position for position, _ in hook(ranks, LaneSum(Network(), ranks, shares_of(ranks, NUM_LANES)), ONE_PASS)]


def test_of_whole_weights_a_lane_is_told_of_where_it_stands_alone_and_the_last(tmp_path: Path) -> None:
    [positions] = on_ranks(1, positions_seen, tmp_path)
    assert sorted(set(positions)) == [0, 2, 4, 6, 7]


def closed(ranks: Ranks) -> None:
    lane_sum = LaneSum(Network(), ranks, shares_of(ranks, 4))
    lane_sum.close()
    backward(lane_sum, range(2), (1, 1), 0)


def test_nothing_is_exchanged_once_it_is_closed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shutdown"):
        on_ranks(2, closed, tmp_path)


def broken_line(ranks: Ranks) -> None:
    """The other rank is gone before the exchange."""
    lane_sum = LaneSum(Network(), ranks, shares_of(ranks, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Exchange, "finish", unplugged)
        backward(lane_sum, range(2), (1, 1), 0)


def unplugged(*_: object) -> None:
    raise ConnectionError("the cable is out")


def test_an_exchange_that_fails_fails_the_step(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the cable is out"):
        on_ranks(2, broken_line, tmp_path)


LENGTHS = (0, 1, 2, 3, 5, 9)


def buffer_of(rank: int, length: int) -> Tensor:
    return torch.arange(length, dtype=torch.float32) + 10.0 ** (4 * rank)


def summed(ranks: Ranks) -> list[list[float]]:
    """The sums of buffers of several lengths, one after another."""
    buffers = [buffer_of(ranks.rank, length) for length in LENGTHS]
    for buffer in buffers:
        sum_over_ranks([buffer], exchange_plan(shares_of(ranks, ranks.world_size)), dist.group.WORLD)
    return [buffer.tolist() for buffer in buffers]


def test_a_buffer_of_any_length_is_summed_as_a_tree(tmp_path: Path) -> None:
    parts = [[buffer_of(rank, length) for rank in range(4)] for length in LENGTHS]
    trees = [((a + b) + (c + d)).tolist() for a, b, c, d in parts]
    assert on_ranks(4, summed, tmp_path) == [trees] * 4
