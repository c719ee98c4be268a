"""Sums in a fixed order, and digests of numbers.

A sum has the same bits everywhere only if it is added in the same order everywhere. Numbers are compared by a digest
of their bytes: two computations of the same quantity are equal in each bit, or one of them is wrong.
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import torch
import xxhash
from torch import Tensor

from assay.base.shapes import Float, Int64, Shaped
from assay.models.kernels.digest import device_digest

_64_BITS = (1 << 64) - 1
DIGEST_BITS = 52
"""Width of digests that are logged as metrics: the integers that a float64 holds exactly."""


def added_in_order(numbers: Iterable[float]) -> float:
    """Return the sum, added from left to right. Python's `sum` compensates rounding errors from 3.12 on, so its
    bits differ."""
    return reduce(operator.add, numbers, 0.0)


class MetricSum(NamedTuple):
    """A contribution to a metric: the step's value is the sum of sums over the sum of weights."""

    sum: Shaped[Tensor, ""] | float
    weight: Shaped[Tensor, ""] | float


def means_of(names: Sequence[str], lanes: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return weighted means of metrics; a metric of zero weight is left out.

    A line holds the lane index, then sum and weight of each metric. Lines are added in the given order.
    """
    totals = [added_in_order(of_lanes) for of_lanes in zip(*lanes, strict=True)][1:]
    named = zip(names, totals[::2], totals[1::2], strict=True)
    return {name: total / weight for name, total, weight in named if weight}


def digest_of_bits(tensor: Shaped[Tensor, "..."]) -> int:
    """Return the xxh3-64 of a tensor's bytes in row-major order."""
    in_memory = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest: int = xxhash.xxh3_64_intdigest(in_memory.numpy().data)
    return digest


def combined_digest(digests: Iterable[int]) -> int:
    """Return one number of `DIGEST_BITS` bits for digests in a fixed order."""
    joined = b"".join(digest.to_bytes(8, "little") for digest in digests)
    digest: int = xxhash.xxh3_64_intdigest(joined)
    return digest & ((1 << DIGEST_BITS) - 1)


def extended_digest(digest: int, further: Sequence[int]) -> int:
    """Return one digest of a lane's gradient and of what the lane computed besides, if anything."""
    return combined_digest([digest, *further]) if further else digest


_Digest = int | Int64[Tensor, ""]
"""A digest of 64 bits; of a tensor on a GPU, it is there, too."""


class GradientDigest:
    """The digest of a gradient whose parts arrive in any order; equal to `digest_of_tensors` of the whole."""

    def __init__(self) -> None:
        self._digests: dict[int, _Digest] = {}

    def take(self, parameter_indices: Sequence[int], gradients: Sequence[Float[Tensor, "..."]]) -> None:
        """Add some parameters' gradients; indices count the trained parameters in the model's order."""
        for index, gradient in zip(parameter_indices, gradients, strict=True):
            self._digests[index] = _digest_where_it_is(gradient)

    def combined(self) -> int:
        """Return the digest of all gradients, `DIGEST_BITS` bits."""
        return combined_digest(_read([self._digests[index] for index in sorted(self._digests)]))


def digest_of_tensors(tensors: Iterable[Shaped[Tensor, "..."]]) -> int:
    """Return the digest of tensors in a fixed order, `DIGEST_BITS` bits."""
    return combined_digest(_read(list(map(_digest_where_it_is, tensors))))


def _digest_where_it_is(tensor: Shaped[Tensor, "..."]) -> _Digest:
    """Return the digest of a tensor's bits, computed on its device: a GPU's gradient is not copied to the host."""
    return device_digest(tensor) if tensor.is_cuda else digest_of_bits(tensor)


def _read(digests: Sequence[_Digest]) -> Iterator[int]:
    """Return digests as numbers of 64 bits; those of a GPU are read with one wait."""
    on_device = [digest for digest in digests if isinstance(digest, Tensor)]
    read = iter(torch.stack(on_device).tolist() if on_device else [])
    return ((next(read) if isinstance(digest, Tensor) else digest) & _64_BITS for digest in digests)
