"""What fixes the numbers of a forward and backward pass besides its inputs: generators and precision.

And how numbers are compared: by a digest of their bytes, since two computations of the same thing are equal in
every bit or one of them is wrong.
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
"""The width of digests that are written down as metrics: what a float64 holds exactly."""


def seed_generators(key: int) -> None:
    """What `torch.manual_seed` does, a hundred times as fast: it asks every backend that there may be."""
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(key)


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass."""
    wanted = precision == "bfloat16" or (
        precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    )
    return torch.autocast(device.type, torch.bfloat16) if wanted else nullcontext()


def added_in_order(numbers: Iterable[float]) -> float:
    """Their sum, one after the other. Python's `sum` carries what was rounded away from 3.12 on: other bits."""
    return reduce(operator.add, numbers, 0.0)


def digest_of_bits(tensor: Shaped[Tensor, "..."]) -> int:
    """xxh3-64 of a tensor's bytes in row-major order."""
    in_memory = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest: int = xxhash.xxh3_64_intdigest(in_memory.numpy().data)
    return digest


def combined_digest(digests: Iterable[int]) -> int:
    """One number of `DIGEST_BITS` bits for digests in a fixed order."""
    joined = b"".join(digest.to_bytes(8, "little") for digest in digests)
    digest: int = xxhash.xxh3_64_intdigest(joined)
    return digest & ((1 << DIGEST_BITS) - 1)


class GradientDigest:
    """The digest of a gradient whose parts come in any order: that of `digest_of_tensors` of the whole."""

    def __init__(self) -> None:
        self._digests: dict[int, int] = {}

    def take(self, parameter_indices: Sequence[int], gradients: Sequence[Float[Tensor, "..."]]) -> None:
        """Some parameters' gradients; the indices count the trained parameters in the order of the model."""
        for index, gradient in zip(parameter_indices, gradients, strict=True):
            self._digests[index] = digest_of_bits(gradient)

    def combined(self) -> int:
        """The digest of all that was taken; `DIGEST_BITS` bits."""
        return combined_digest(self._digests[index] for index in sorted(self._digests))


def digest_of_tensors(tensors: Iterable[Shaped[Tensor, "..."]]) -> int:
    """The digest of tensors in a fixed order; `DIGEST_BITS` bits."""
    return combined_digest(map(digest_of_bits, tensors))
