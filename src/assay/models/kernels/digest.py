"""A digest of a tensor's bits, computed on its device without a wait, in any order and in parts.

    digest = sum over units of mix(bits, index)  mod 2^64

A unit is an entry; entries of 8 bytes are two units. An integer sum has the same bits in any order, so shards of a
tensor add up to the digest of the whole. mix is the finalizer of splitmix64 (Steele, Lea and Flood 2014, "Fast
splittable pseudorandom number generators") over bits + index * GAMMA: multiples of GAMMA below 2^31 lie more than 2^32
apart, so no two pairs of bits and index have the same argument. One flipped bit, two swapped entries or added zeros
change the digest, except by a chance of 2^-64. It detects faults of the hardware, not forgery.
"""

import torch
from torch import Tensor

from assay.base.shapes import Int64, Shaped

GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
MULTIPLIERS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
SHIFTS = (30, 27, 31)
UNITS_AT_ONCE = 1 << 24
"""Bounds the memory: a unit takes about 24 bytes while it is mixed."""
_UNIT_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}


def device_digest(tensor: Shaped[Tensor, "..."], first_index: int = 0) -> Int64[Tensor, ""]:
    """Return the digest of a tensor's bits in row-major order, on its device.

    `first_index` is the index of a shard's first entry within the whole tensor.
    """
    flat = tensor.detach().contiguous().view(-1)
    units = flat.view(_UNIT_TYPES[tensor.element_size()])
    first_unit = first_index * max(1, tensor.element_size() // 4)
    digest = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, len(units), UNITS_AT_ONCE):
        part = units[start : start + UNITS_AT_ONCE]
        indices = torch.arange(first_unit + start, first_unit + start + len(part), device=tensor.device)
        digest += _mixed(indices.mul_(GAMMA).add_(part)).sum()
    return digest


def _mixed(words: Int64[Tensor, "unit"]) -> Int64[Tensor, "unit"]:
    """Return the finalizer of splitmix64, in place; int64 products wrap, as those of unsigned words do."""
    for shift, multiplier in zip(SHIFTS, (*MULTIPLIERS, 1), strict=True):
        # torch shifts the sign in from the left; the mask makes the shift logical.
        words ^= (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        words *= multiplier
    return words
