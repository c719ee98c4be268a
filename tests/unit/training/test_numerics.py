"""Sums in the order of lanes, and the digests by which two computations of one thing are compared."""

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.training.numerics import (
    DIGEST_BITS,
    GradientDigest,
    combined_digest,
    digest_of_bits,
    digest_of_tensors,
    extended_digest,
    means_of,
)


def test_a_digest_is_of_the_bytes_in_row_major_order_wherever_they_lie() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    expected = xxhash.xxh3_64_intdigest(tensor.numpy().tobytes())
    assert digest_of_bits(tensor) == digest_of_bits(tensor.t().contiguous().t()) == expected
    assert digest_of_bits(tensor.clone().requires_grad_()) == digest_of_bits(
        torch.tensor(3.0).new_tensor([[0.0, 1, 2], [3, 4, 5]])
    )
    assert digest_of_bits(tensor.t()) != expected
    assert digest_of_bits(torch.tensor(1.0)) != digest_of_bits(torch.tensor(-1.0))
    assert digest_of_bits(torch.zeros(2)) != digest_of_bits(-torch.zeros(2))


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_a_combined_digest_is_exact_as_a_metric_and_depends_on_every_part_and_on_their_order(digests) -> None:
    combined = combined_digest(digests)
    assert 0 <= combined < 2**DIGEST_BITS and int(float(combined)) == combined
    joined = b"".join(digest.to_bytes(8, "little") for digest in digests)
    assert combined == xxhash.xxh3_64_intdigest(joined) % 2**DIGEST_BITS
    assert len({combined_digest([index, *digests]) for index in range(50)}) == 50


@settings(deadline=None)
@given(st.permutations(range(5)))
def test_the_parts_of_a_gradient_may_come_in_any_order(order) -> None:
    gradients = [torch.full((index + 1,), float(index)) for index in range(5)]
    digest = GradientDigest()
    for part in (order[:2], order[2:]):
        digest.take(part, [gradients[index] for index in part])
    assert digest.combined() == digest_of_tensors(gradients)
    assert digest.combined() != digest_of_tensors(gradients[::-1])


def test_digests_keep_as_many_bits_as_a_float64_holds() -> None:
    assert max(combined_digest([index]) for index in range(200)) > 2 ** (DIGEST_BITS - 1)
    assert float(2**DIGEST_BITS - 1) + 1.0 == 2**DIGEST_BITS


def test_a_gradient_is_taken_with_one_index_each() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        GradientDigest().take([0, 1], [torch.zeros(1)])


def test_digests_are_those_that_runs_have_written_down() -> None:
    """A replay compares with them, and runs of before must go on being replayed."""
    assert [combined_digest([number]) for number in (0, 1, 2)] == [
        3160801448275161, 3475785580771630, 1906950747906627,
    ]  # fmt: skip
    assert digest_of_tensors([torch.arange(3.0), torch.ones(2, 2)]) == 3482526106344280


def test_means_are_of_sums_in_the_order_of_lanes_over_what_weighs_something() -> None:
    lanes = [[0.0, 1e16, 1.0, 5.0, 0.0], [1.0, 1.0, 1.0, 7.0, 0.0], [2.0, -1e16, 2.0, 9.0, 0.0]]
    assert means_of(["a", "b"], lanes) == {"a": ((1e16 + 1.0) - 1e16) / 4}
    assert means_of(["a"], [[7.0, 6.0, 3.0]]) == {"a": 2.0}
    assert means_of([], [[0.0], [1.0]]) == {}


def test_a_digest_of_a_lane_that_computed_nothing_else_is_its_gradients() -> None:
    assert extended_digest(5, ()) == 5
    assert extended_digest(5, (1, 2)) == combined_digest([5, 1, 2])
