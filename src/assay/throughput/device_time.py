"""How long a device takes for an operator, from its data sheet: an estimate; only a measurement is evidence.

A product [m, k] x [k, n] is cut into tiles of its result. A multiprocessor computes one tile at a time, so all of
them compute a wave of tiles:

    seconds = waves x (rounded k x tile) / (rate of a multiprocessor x share that the tile and its rows reach)

    tiles        the part of the last tiles that lies outside the matrix, also along k; smaller tiles than the largest
    waves        multiprocessors without a tile in the last wave
    alignment    rows that do not begin at multiples of 16 bytes are loaded in smaller pieces

The tile is the fastest of those that cuBLAS has. After NVIDIA, "Matrix Multiplication Background User's Guide"
(DU-09799-001, 2023), sections 2.2 to 3.2. Sums along k are not split, as ranks forbid it (`records.processor`).
A product takes at least as long as its matrices take from memory and back.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from assay.models.traced import MATRICES_OF_ATTENTION, PassTrace, Product, TracedAttention
from assay.records.devices import DeviceSheet

TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
"""Tiles of cuBLAS on tensor cores (the guide's section 2.3), [m, n]."""
TILE_K_BYTES = 128
"""A tile is computed in pieces along k of so many bytes: 64 numbers of bfloat16."""
REACHED_FLOPS, REACHED_BYTES = 0.85, 0.9
"""Shares of the data sheet's rates that large products and copies reach: 0.80 and 0.90 were measured on an H100 and an
H200 (docs/gpu.md), the former with what `_tile_share` takes from the largest tile."""
SMALL_TILE_COST = 10.0
"""Loading a tile's rows and columns costs as much as this many further numbers along its harmonic mean. Assumed, so
that a tile of 64 x 64 reaches 0.85 of what one of 256 x 128 does."""
ALIGNED_SHARE = {16: 1.0, 8: 0.8, 4: 0.65, 2: 0.45}
"""Multiple of bytes at which rows begin -> share of the rate. The guide's figure 2 gives the order; the values are
assumed. With them a step of nanoGPT is 1.22 times as fast with 50,304 entries as with 50,257; published is 1.25."""
VOCABULARY_MULTIPLE = 128
"""A vocabulary of such a multiple is aligned and fills its last tile."""
ATTENTION_SHARE = 0.5
"""Share of the rate that fused attention reaches (Dao 2023, arXiv:2307.08691: 0.5 to 0.7 on an A100)."""
HEAD_WIDTHS = (32, 64, 96, 128, 192, 256)
"""Widths of a head for which fused attention is compiled; others are computed as the next one."""
QUERY_BLOCK = 128
"""Queries of one head that a multiprocessor computes at once, and keys that it reads at once."""
COMPILED_SHARE = 0.3
"""Share of the kernels, and of their bytes, that compiled layers keep (tests/unit/models/test_kernel_count.py)."""
HOST_S = 4e-5
"""Seconds in which the host starts a kernel that is not captured, as measured beside an H200."""


class OperatorTime(NamedTuple):
    """Estimated seconds of one call, and how many of them are lost to what."""

    seconds: float
    lost_s: Mapping[str, float]


class PassTime(NamedTuple):
    """Estimated seconds of a pass by kind of operator."""

    products: float
    attention: float
    other: float
    host: float = 0.0
    """The device waits for the host to start kernels."""

    @property
    def seconds(self) -> float:
        return sum(self)


def pass_time(
    trace: PassTrace, device: DeviceSheet, *, is_compiled: bool = False, is_captured: bool = True
) -> PassTime:
    """Return the time of a pass. The host starts no kernel of a captured one, and on a CPU takes no time."""
    products_s = sum(product.calls * product_time(product, device).seconds for product in trace.products)
    attention_s = sum(attention.calls * attention_time(attention, device).seconds for attention in trace.attentions)
    share = COMPILED_SHARE if is_compiled else 1.0
    other_s = share * trace.other_bytes / (REACHED_BYTES * device.memory_bytes_per_s)
    starts_s = 0.0 if is_captured or not device.multiprocessors else share * trace.num_kernels * HOST_S
    return PassTime(products_s, attention_s, other_s, max(0.0, starts_s - products_s - attention_s - other_s))


def product_time(product: Product, device: DeviceSheet) -> OperatorTime:
    """Return the time of one call, with the tile that takes the least."""
    if not device.multiprocessors:  # a CPU, whose tiles are not known
        return OperatorTime(product.flops / _rate(product.item_bytes, device), {})
    return min((_with_tile(product, device, *tile) for tile in TILES), key=lambda found: found.seconds)


def vocabulary_time(product: Product, device: DeviceSheet, *, size: int, used: int) -> OperatorTime:
    """Return the time of a product along a vocabulary: lost to it is what its size costs, and unused entries."""
    found, filled = product_time(product, device), _rounded(size, VOCABULARY_MULTIPLE)
    sizes: dict[str, Any] = {name: filled for name in ("m", "n", "k") if getattr(product, name) == size}
    multiple = math.gcd(filled, product.m if "k" in sizes else product.k)
    padded = product_time(product._replace(row_multiple=multiple, **sizes), device)
    best = min(padded, found, key=lambda one: one.seconds)
    unused_s = max(0, size - used) / size * (best.seconds - sum(best.lost_s.values()))
    return OperatorTime(found.seconds, {**best.lost_s, "vocabulary": found.seconds - best.seconds + unused_s})


def attention_time(attention: TracedAttention, device: DeviceSheet) -> OperatorTime:
    """Return the time of one call of fused attention."""
    if not device.multiprocessors:
        return OperatorTime(attention.flops / _rate(attention.item_bytes, device), {})
    pairs = sum(_pairs(length, 1, attention.is_causal) for length in attention.lengths)
    blocked = sum(_pairs(length, QUERY_BLOCK, attention.is_causal) for length in attention.lengths)
    flops = MATRICES_OF_ATTENTION[attention.direction] * 2 * attention.heads * attention.width * pairs
    ideal_s = flops / (ATTENTION_SHARE * _rate(attention.item_bytes, device))
    padded = next((width for width in HEAD_WIDTHS if width >= attention.width), attention.width)
    tiled_s = ideal_s * (blocked / max(1, pairs)) * (padded / attention.width)
    blocks = attention.heads * sum(-(-length // QUERY_BLOCK) for length in attention.lengths)
    waved_s = tiled_s * _rounded(blocks, device.multiprocessors) / max(1, blocks)
    moved_s = attention.num_bytes / (REACHED_BYTES * device.memory_bytes_per_s)
    # Heads that are no multiple of 16 bytes are copied to some that are, and their results back.
    copied_s = 2 * moved_s if attention.width * attention.item_bytes % max(ALIGNED_SHARE) else 0.0
    return _with_losses(ideal_s, moved_s, tiles=tiled_s, waves=waved_s, alignment=max(waved_s, moved_s) + copied_s)


def _with_tile(product: Product, device: DeviceSheet, tile_m: int, tile_n: int) -> OperatorTime:
    rate = REACHED_FLOPS * _rate(product.item_bytes, device)
    ideal_s = product.flops / (rate * _tile_share(*TILES[0]))
    tile_k = TILE_K_BYTES // product.item_bytes
    rounded = _rounded(product.m, tile_m) * _rounded(product.n, tile_n) * _rounded(product.k, tile_k)
    tiled_s = 2 * product.batch * rounded / (rate * _tile_share(tile_m, tile_n))
    num_tiles = product.batch * -(-product.m // tile_m) * -(-product.n // tile_n)
    waved_s = tiled_s * _rounded(num_tiles, device.multiprocessors) / num_tiles
    moved_s = product.num_bytes / (REACHED_BYTES * device.memory_bytes_per_s)
    return _with_losses(ideal_s, moved_s, tiles=tiled_s, waves=waved_s, alignment=waved_s / _aligned_share(product))


def _with_losses(ideal_s: float, moved_s: float, **stages_s: float) -> OperatorTime:
    """Return the time after the last stage. Each stage loses what it adds, and none is faster than memory."""
    found_s, lost_s = max(ideal_s, moved_s), dict[str, float]()
    for loss, stage_s in stages_s.items():
        lost_s[loss] = max(stage_s, moved_s) - found_s
        found_s += lost_s[loss]
    return OperatorTime(found_s, lost_s)


def _rate(item_bytes: int, device: DeviceSheet) -> float:
    return device.bf16_flops if item_bytes == 2 else device.float32_flops


def _tile_share(tile_m: int, tile_n: int) -> float:
    harmonic = tile_m * tile_n / (tile_m + tile_n)
    return harmonic / (harmonic + SMALL_TILE_COST)


def _aligned_share(product: Product) -> float:
    if product.item_bytes != 2:  # computed without tensor cores
        return 1.0
    return ALIGNED_SHARE[math.gcd(product.row_multiple * product.item_bytes, max(ALIGNED_SHARE))]


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _pairs(length: int, block: int, is_causal: bool) -> int:
    """Return the pairs of query and key that are computed in square blocks."""
    blocks = -(-length // block)
    return (blocks * (blocks + 1) // 2 if is_causal else blocks * blocks) * block * block
