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
from collections.abc import Iterable
from typing import Literal, NamedTuple

from assay.models.traced import MATRICES_OF_ATTENTION, PassTrace, Product, TracedAttention
from assay.records.devices import DeviceSheet

Loss = Literal["tiles", "waves", "alignment"]
LOSSES: tuple[Loss, ...] = ("tiles", "waves", "alignment")

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
ATTENTION_SHARE = 0.5
"""Share of the rate that fused attention reaches (Dao 2023, arXiv:2307.08691: 0.5 to 0.7 on an A100)."""
HEAD_WIDTHS = (32, 64, 96, 128, 192, 256)
"""Widths of a head for which fused attention is compiled; others are computed as the next one."""
QUERY_BLOCK = 128
"""Queries of one head that a multiprocessor computes at once, and keys that it reads at once."""
COMPILED_BYTES = 0.3
"""Share of the bytes of operators as written that compiled layers move (tests/unit/models/test_kernel_count.py)."""


class OperatorTime(NamedTuple):
    """Estimated seconds of one call."""

    seconds: float
    tiles_s: float
    waves_s: float
    alignment_s: float
    tile: tuple[int, int] | None = None

    def lost_s(self, loss: Loss) -> float:
        return {"tiles": self.tiles_s, "waves": self.waves_s, "alignment": self.alignment_s}[loss]


class PassTime(NamedTuple):
    """Estimated seconds of a pass by kind of operator."""

    products: float
    attention: float
    other: float

    @property
    def seconds(self) -> float:
        return sum(self)

    def scaled(self, factors: "PassTime") -> "PassTime":
        return PassTime(*(seconds * factor for seconds, factor in zip(self, factors, strict=True)))


def mean_time(times: Iterable[PassTime]) -> PassTime:
    """Return the mean of several passes."""
    rows = list(times)
    return PassTime(*(sum(column) / len(rows) for column in zip(*rows, strict=True)))


def pass_time(trace: PassTrace, device: DeviceSheet, *, is_compiled: bool = False) -> PassTime:
    """Return the time of a pass."""
    other_bytes = trace.other_bytes * (COMPILED_BYTES if is_compiled else 1.0)
    return PassTime(
        sum(product.calls * product_time(product, device).seconds for product in trace.products),
        sum(attention.calls * attention_time(attention, device).seconds for attention in trace.attentions),
        other_bytes / (REACHED_BYTES * device.memory_bytes_per_s),
    )


def product_time(product: Product, device: DeviceSheet) -> OperatorTime:
    """Return the time of one call, with the tile that takes the least."""
    if not device.multiprocessors:  # a CPU, whose tiles are not known
        return OperatorTime(product.flops / _rate(product.item_bytes, device), 0.0, 0.0, 0.0)
    return min((_with_tile(product, device, *tile) for tile in TILES), key=lambda found: found.seconds)


def _with_tile(product: Product, device: DeviceSheet, tile_m: int, tile_n: int) -> OperatorTime:
    rate = REACHED_FLOPS * _rate(product.item_bytes, device)
    ideal_s = product.flops / (rate * _tile_share(*TILES[0]))
    tile_k = TILE_K_BYTES // product.item_bytes
    rounded = _rounded(product.m, tile_m) * _rounded(product.n, tile_n) * _rounded(product.k, tile_k)
    tiled_s = 2 * product.batch * rounded / (rate * _tile_share(tile_m, tile_n))
    num_tiles = product.batch * -(-product.m // tile_m) * -(-product.n // tile_n)
    waves = -(-num_tiles // device.multiprocessors)
    waved_s = tiled_s * waves * device.multiprocessors / num_tiles
    aligned_s = waved_s / _aligned_share(product)
    moved_s = product.num_bytes / (REACHED_BYTES * device.memory_bytes_per_s)
    ideal_s, tiled_s, waved_s, aligned_s = (max(part_s, moved_s) for part_s in (ideal_s, tiled_s, waved_s, aligned_s))
    return _losses(ideal_s, tiled_s, waved_s, aligned_s, tile=(tile_m, tile_n))


def attention_time(attention: TracedAttention, device: DeviceSheet) -> OperatorTime:
    """Return the time of one call of fused attention."""
    if not device.multiprocessors:
        return OperatorTime(attention.flops / _rate(attention.item_bytes, device), 0.0, 0.0, 0.0)
    pairs = sum(_pairs(length, 1, attention.is_causal) for length in attention.lengths)
    blocked = sum(_pairs(length, QUERY_BLOCK, attention.is_causal) for length in attention.lengths)
    matrices = MATRICES_OF_ATTENTION[attention.direction]
    rate = ATTENTION_SHARE * _rate(attention.item_bytes, device)
    ideal_s = matrices * 2 * attention.heads * attention.width * pairs / rate
    padded = next((width for width in HEAD_WIDTHS if width >= attention.width), attention.width)
    tiled_s = ideal_s * (blocked / max(1, pairs)) * (padded / attention.width)
    blocks = attention.heads * sum(-(-length // QUERY_BLOCK) for length in attention.lengths)
    waved_s = tiled_s * -(-blocks // device.multiprocessors) * device.multiprocessors / max(1, blocks)
    moved_s = attention.num_bytes / (REACHED_BYTES * device.memory_bytes_per_s)
    # Heads that are no multiple of 16 bytes are copied to some that are, and their results back.
    copied_s = 2 * moved_s if attention.width * attention.item_bytes % max(ALIGNED_SHARE) else 0.0
    ideal_s, tiled_s, waved_s = (max(seconds, moved_s) for seconds in (ideal_s, tiled_s, waved_s))
    return _losses(ideal_s, tiled_s, waved_s, waved_s + copied_s)


def _losses(
    ideal_s: float, tiled_s: float, waved_s: float, aligned_s: float, tile: tuple[int, int] | None = None
) -> OperatorTime:
    return OperatorTime(aligned_s, tiled_s - ideal_s, waved_s - tiled_s, aligned_s - waved_s, tile)


def _rate(item_bytes: int, device: DeviceSheet) -> float:
    return device.bf16_flops if item_bytes == 2 else device.float32_flops


def _tile_share(tile_m: int, tile_n: int) -> float:
    harmonic = tile_m * tile_n / (tile_m + tile_n)
    return harmonic / (harmonic + SMALL_TILE_COST)


def _aligned_share(product: Product) -> float:
    if product.item_bytes != 2:  # computed without tensor cores
        return 1.0
    multiple = math.gcd(product.row_multiple * product.item_bytes, max(ALIGNED_SHARE))
    return ALIGNED_SHARE[multiple]


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _pairs(length: int, block: int, is_causal: bool) -> int:
    """Return the pairs of query and key that are computed in square blocks."""
    blocks = -(-length // block)
    return (blocks * (blocks + 1) // 2 if is_causal else blocks * blocks) * block * block
