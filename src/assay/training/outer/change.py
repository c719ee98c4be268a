"""The change of the weights that a cluster sends, as bytes: quantised in blocks, in a safetensors file.

    scales    one bfloat16 a block of 64 values: its largest absolute value / the largest code, rounded up
    codes     value / scale, rounded to the nearest integer; two codes a byte at 4 bits; the float32 values at 32 bits

A decoded value differs from the original by at most half its block's scale. Both directions use only divisions,
products and roundings of single values, which IEEE 754 defines: equal changes give equal bytes on any number of
threads.
"""

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from assay.base.errors import AssayError, DamagedDataError
from assay.base.shapes import Float32, Num, Shaped
from assay.training.outer.config import Bits

BLOCK = 64
"""Values a scale. Blocks of 64, 128 and 256 cost 4.25, 4.13 and 4.06 bits a weight at 4 bits; on the change of 20
AdamW steps of a causal model, the error is 10.2%, 11.2% and 12.1% of the change's 2-norm.
"""
LARGEST = 2.0**126
"""Largest absolute value of a change. A decoded value may exceed its block's largest value by 1%."""
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""Smaller scales are zero, because processors may flush them to zero."""
METADATA = "change"
"""The only key of the file's metadata: safetensors writes several keys in random order."""
CODE_TYPES = {4: torch.uint8, 8: torch.int8, 16: torch.int16, 32: torch.float32}

Change = dict[str, Shaped[Tensor, "..."]]


def encode(change: Mapping[str, Float32[Tensor, "..."]], bits: Bits) -> bytes:
    """Return a change of the weights as a file. Raises `AssayError` if a value is not finite."""
    names = sorted(change)
    codes, scales = [], []
    for name in names:
        values = change[name].detach().contiguous().flatten()
        assert values.dtype == torch.float32, f"{name}: {values.dtype}"
        _check_finite(name, values)
        if bits == 32:
            codes.append(values.cpu())
            continue
        block_codes, block_scales = _quantised(values, largest_code=_largest_code(bits))
        codes.append(block_codes.to(torch.int8 if bits == 4 else CODE_TYPES[bits]).cpu())
        scales.append(block_scales.bfloat16().cpu())
    flat = torch.cat(codes) if codes else torch.zeros(0)
    header = {"bits": bits, "shapes": {name: list(change[name].shape) for name in names}}
    tensors = {"codes": _packed(flat) if bits == 4 else flat, "scales": torch.cat(scales or [torch.zeros(0)])}
    data: bytes = save(tensors, metadata={METADATA: json.dumps(header, separators=(",", ":"))})
    return data


def decode(data: bytes) -> Change:
    """Return the change of the weights in a file, in float32. Raises `DamagedDataError` if it is not a change."""
    try:
        tensors, (bits, shapes) = load(data), _header(data)
        codes, scales = tensors["codes"], tensors["scales"].float()
        sizes = [prod(shape) for shape in shapes.values()]
        _check_sizes(codes, scales, bits, sizes)
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedDataError(
            f"this object is not a change of weights that assay wrote: {error}. Restore it in the meeting place, and "
            "train all clusters with the same version of assay."
        ) from error
    if bits == 4:
        codes = _unpacked(codes)[: sum(sizes)]
    values = torch.split(codes, sizes) if bits == 32 else _dequantised(codes, scales, sizes)
    return {name: value.reshape(shape) for (name, shape), value in zip(shapes.items(), values, strict=True)}


def _check_finite(name: str, values: Float32[Tensor, "value"]) -> None:
    # NaN is not at most LARGEST.
    if len(values) and not values.abs().amax() <= LARGEST:
        raise AssayError(
            f"{name}: the change of the weights is not finite, or exceeds {LARGEST:.1e}: the training diverged. Lower "
            "trainer.optimizer.learning_rate, and continue from a commit before the divergence."
        )


def _largest_code(bits: int) -> int:
    """Return the largest code: codes are symmetric, so that a change and its negative differ in sign only."""
    return int(2 ** (bits - 1)) - 1


def _quantised(
    values: Float32[Tensor, "value"], *, largest_code: int
) -> tuple[Float32[Tensor, "value"], Float32[Tensor, "block"]]:
    """Return the codes of values, as floats, and the scales of their blocks."""
    missing = -len(values) % BLOCK
    blocks = torch.nn.functional.pad(values, (0, missing)).reshape(-1, BLOCK)
    scales = _rounded_up(blocks.abs().amax(1) / largest_code)
    scales = torch.where(scales < SMALLEST_SCALE, 0.0, scales)
    divisors = torch.where(scales == 0, 1.0, scales)
    return (blocks / divisors[:, None]).round().flatten()[: len(values)], scales


def _rounded_up(scales: Float32[Tensor, "block"]) -> Float32[Tensor, "block"]:
    """Return the next numbers that bfloat16 holds, so that no code exceeds the largest."""
    return ((scales.view(torch.int32) + 0xFFFF) >> 16 << 16).view(torch.float32)


def _dequantised(
    codes: Num[Tensor, "value"], scales: Float32[Tensor, "block"], sizes: Sequence[int]
) -> list[Float32[Tensor, "_"]]:
    """Return the values of each tensor."""
    num_blocks = [-(-size // BLOCK) for size in sizes]
    tensors = zip(torch.split(codes, list(sizes)), torch.split(scales, num_blocks), strict=True)
    return [own.float() * factors.repeat_interleave(BLOCK)[: len(own)] for own, factors in tensors]


def _packed(codes: Num[Tensor, "code"]) -> Num[Tensor, "byte"]:
    """Return two codes a byte, the first in the lower half, each plus 8."""
    nibbles = (torch.nn.functional.pad(codes, (0, len(codes) % 2)) + 8).to(torch.uint8)
    return nibbles[::2] | (nibbles[1::2] << 4)


def _unpacked(packed: Num[Tensor, "byte"]) -> Num[Tensor, "code"]:
    return torch.stack([packed & 15, packed >> 4], dim=1).flatten().to(torch.int8) - 8


def _header(data: bytes) -> tuple[int, dict[str, tuple[int, ...]]]:
    """Return the bits and the shapes that the metadata of a file says."""
    length = int.from_bytes(data[:8], "little")
    tree: Any = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][METADATA])
    return int(tree["bits"]), {str(name): tuple(shape) for name, shape in tree["shapes"].items()}


def _check_sizes(codes: Num[Tensor, "..."], scales: Shaped[Tensor, "..."], bits: int, sizes: Sequence[int]) -> None:
    if bits not in get_args(Bits) or codes.dtype != CODE_TYPES[bits]:
        raise ValueError(f"codes of {bits} bits in {codes.dtype}")
    num_codes = (sum(sizes) + 1) // 2 if bits == 4 else sum(sizes)
    num_scales = 0 if bits == 32 else sum(-(-size // BLOCK) for size in sizes)
    if (codes.shape, scales.shape) != ((num_codes,), (num_scales,)):
        raise ValueError(
            f"{tuple(codes.shape)} codes and {tuple(scales.shape)} scales, expected {num_codes} and {num_scales}"
        )
    if not (codes.isfinite().all() and scales.isfinite().all()):
        raise ValueError("a value is not finite")
