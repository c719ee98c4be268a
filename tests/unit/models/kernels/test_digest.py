"""The digest of bits that is computed on the device: what it notices, and that parts add up."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.models.kernels import digest
from assay.models.kernels.digest import device_digest
from no_host_waits import NoHostWaits

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8]


def numbers(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return (100 * torch.randn(count, generator=torch.Generator().manual_seed(seed))).abs().to(dtype)


def in_unsigned_words(tensor: torch.Tensor) -> int:
    """The definition in NumPy's unsigned words."""
    size = {8: np.int32, 4: np.int32, 2: np.int16, 1: np.uint8}[tensor.element_size()]
    with np.errstate(over="ignore"):
        units = tensor.view(torch.uint8).numpy().view(size).astype(np.int64).astype(np.uint64)
        z = np.arange(len(units), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + units
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int((z ^ (z >> np.uint64(31))).sum(dtype=np.uint64).astype(np.int64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_splitmix_of_bits_and_index_whatever_is_mixed_at_once(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = numbers(1000, dtype)
    tensor[::3] *= -1 if dtype != torch.uint8 else 1
    assert int(device_digest(tensor)) == in_unsigned_words(tensor)
    monkeypatch.setattr(digest, "UNITS_AT_ONCE", 7)
    assert int(device_digest(tensor)) == in_unsigned_words(tensor)


@settings(deadline=None)
@given(count=st.integers(1, 40), data=st.data())
def test_a_flipped_bit_two_swapped_entries_and_added_zeros_change_it(count: int, data: st.DataObject) -> None:
    tensor = numbers(count, torch.float32, seed=count)
    flipped, swapped = tensor.clone(), tensor.clone()
    index, bit = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, 31))
    flipped.view(torch.int32)[index] ^= 1 << bit if bit < 31 else -(1 << 31)
    swapped[[0, count - 1]] = tensor[[count - 1, 0]]
    assert device_digest(flipped) != device_digest(tensor)
    assert (device_digest(swapped) != device_digest(tensor)) == (tensor[0] != tensor[-1])
    assert device_digest(torch.cat([tensor, torch.zeros(1)])) != device_digest(tensor)
    assert device_digest(torch.cat([torch.zeros(1), tensor])) != device_digest(tensor)
    assert device_digest(torch.zeros(count)) != device_digest(-torch.zeros(count))


@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_add_up_to_the_whole(dtype: torch.dtype) -> None:
    tensor = numbers(60, dtype).view(12, 5)
    parts = [device_digest(tensor[first : first + 4], first * 5) for first in (8, 0, 4)]
    assert sum(parts) == device_digest(tensor)


def test_the_order_is_row_major_whatever_the_strides() -> None:
    tensor = numbers(12, torch.float32).view(3, 4)
    assert device_digest(tensor.t().contiguous().t()) == device_digest(tensor)
    assert device_digest(tensor.t()) != device_digest(tensor)
    assert device_digest(tensor[:, ::2]) == device_digest(tensor[:, ::2].clone())
    assert device_digest(torch.zeros(0)) == 0


def test_the_host_does_not_wait() -> None:
    with NoHostWaits():
        device_digest(numbers(10, torch.bfloat16))
