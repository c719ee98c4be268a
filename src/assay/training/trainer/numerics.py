"""Generators and precision: what determines the numbers of a forward and backward pass besides its inputs.

Numbers are compared by a digest of their bytes: two computations of the same quantity are equal in each bit, or
one of them is wrong.
"""

import operator
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce

import torch
import xxhash
from torch import Tensor

from assay.base.shapes import Float, Shaped
from assay.training.trainer.config import Precision

DIGEST_BITS = 52
"""Width of digests that are logged as metrics: the integers that a float64 holds exactly."""


def seed_generators(key: int) -> None:
    """Seed the generators like `torch.manual_seed`, a hundred times faster: only the backends in use are seeded."""
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(key)


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context of a forward pass."""
    is_bfloat16 = precision == "bfloat16" or (
        precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    )
    return torch.autocast(device.type, torch.bfloat16) if is_bfloat16 else nullcontext()


def added_in_order(numbers: Iterable[float]) -> float:
    """Return the sum, added from left to right. Python's `sum` compensates rounding errors from 3.12 on, so its
    bits differ."""
    return reduce(operator.add, numbers, 0.0)


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


class GradientDigest:
    """The digest of a gradient whose parts arrive in any order; equal to `digest_of_tensors` of the whole."""

    def __init__(self) -> None:
        self._digests: dict[int, int] = {}

    def take(self, parameter_indices: Sequence[int], gradients: Sequence[Float[Tensor, "..."]]) -> None:
        """Add some parameters' gradients; indices count the trained parameters in the model's order."""
        for index, gradient in zip(parameter_indices, gradients, strict=True):
            self._digests[index] = digest_of_bits(gradient)

    def combined(self) -> int:
        """Return the digest of all gradients, `DIGEST_BITS` bits."""
        return combined_digest(self._digests[index] for index in sorted(self._digests))


def digest_of_tensors(tensors: Iterable[Shaped[Tensor, "..."]]) -> int:
    """Return the digest of tensors in a fixed order, `DIGEST_BITS` bits."""
    return combined_digest(map(digest_of_bits, tensors))
