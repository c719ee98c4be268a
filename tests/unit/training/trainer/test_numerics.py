"""What fixes the numbers of a pass, and the digests by which two computations of one thing are compared."""

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.training.trainer.numerics import (
    DIGEST_BITS,
    GradientDigest,
    autocast,
    combined_digest,
    digest_of_bits,
    digest_of_tensors,
    seed_generators,
)

CPU = torch.device("cpu")


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_generators_are_seeded_as_pytorch_seeds_them(key) -> None:
    seed_generators(key)
    ours = torch.rand(3)
    torch.manual_seed(key)
    assert torch.equal(ours, torch.rand(3))


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_a_forward_pass_on_a_cpu_is_in_bfloat16_only_if_asked_for(precision, dtype) -> None:
    layer = torch.nn.Linear(2, 2)
    with autocast(precision, CPU):
        assert layer(torch.ones(1, 2)).dtype == dtype
    assert layer.weight.dtype == torch.float32


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_gpus_generator_is_seeded_alike_where_there_is_one(monkeypatch: pytest.MonkeyPatch, has_gpu) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)
    seed_generators(7)
    assert seeded == [7] * has_gpu


@pytest.mark.parametrize(
    ("precision", "device", "has_bfloat16", "is_mixed"),
    [
        ("auto", "cuda", True, True),
        ("auto", "cuda", False, False),
        ("auto", "cpu", True, False),
        ("float32", "cuda", True, False),
        ("bfloat16", "cuda", False, True),
    ],
)
def test_auto_is_bfloat16_on_a_gpu_that_has_it(monkeypatch, precision, device, has_bfloat16, is_mixed) -> None:
    requested: list[tuple[object, ...]] = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: has_bfloat16)
    monkeypatch.setattr(torch, "autocast", lambda *inputs: requested.append(inputs))
    autocast(precision, torch.device(device))
    assert requested == [(device, torch.bfloat16)] * is_mixed


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
