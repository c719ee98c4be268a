import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.distributed.tree import PartialSums


def lanes_of_gradients(num_lanes: int, seed: int) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3,), (2, 5)]
    return [
        [torch.randn(shape, generator=generator) * 10 ** float(lane % 7) for shape in shapes]
        for lane in range(num_lanes)
    ]


def sum_as_tree(parts: list[torch.Tensor]) -> torch.Tensor:
    """What the exchange between ranks computes: neighbours first, then neighbouring pairs, ..."""
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def summed_on(world_size: int, lanes: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    lanes = [[gradient.clone() for gradient in lane] for lane in lanes]
    per_rank = len(lanes) // world_size
    subtrees = []
    for rank in range(world_size):
        *others, last = lanes[rank * per_rank : (rank + 1) * per_rank]
        partial_sums = PartialSums()
        for gradients in others:
            partial_sums.add(gradients, 1)
        partial_sums.add_to(last, range(len(last)), 1)
        subtrees.append(last)
    return [sum_as_tree([subtree[index] for subtree in subtrees]) for index in range(len(lanes[0]))]


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(0, 10_000))
def test_the_sum_has_the_same_bits_at_every_world_size(num_lanes: int, seed: int) -> None:
    lanes = lanes_of_gradients(num_lanes, seed)
    alone = summed_on(1, lanes)
    for world_size in [2**k for k in range(1, num_lanes.bit_length())]:
        together = summed_on(world_size, lanes)
        for left, right in zip(alone, together, strict=True):
            np.testing.assert_array_equal(left.numpy(), right.numpy())


def test_a_sum_that_was_kept_and_grew_in_a_lanes_memory_is_kept_again() -> None:
    sums, memory = PartialSums(), [torch.ones(2)]
    sums.add(memory, 1)
    sums.keep()
    memory[0].fill_(2.0)  # the next lane, in the memory of the one before
    sums.add(memory, 1)
    sums.keep()
    memory[0].fill_(100.0)
    assert sums.take()[0].tolist() == [3.0, 3.0]


def test_a_plain_running_sum_has_other_bits() -> None:
    lanes = lanes_of_gradients(8, seed=1)
    running = lanes[0][1].clone()
    for lane in lanes[1:]:
        running += lane[1]
    assert not torch.equal(running, summed_on(1, lanes)[1])
    torch.testing.assert_close(running, summed_on(1, lanes)[1])
