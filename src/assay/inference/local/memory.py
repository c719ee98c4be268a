"""Memory of sampling; imports no torch, so that planning can use it.

slots x positions x heads     keys and values of all layers, for each decoding sequence
prompts x positions x heads   those of prompts that wait for a slot
rows x entries                logits of the tile, and copies of them while sampling
"""

from collections.abc import Sequence

from assay.base.errors import ConfigError
from assay.models.causal_config import DecoderShape

SLOTS = 64
"""Sequences that decode together, at most."""
GPU_SLOTS = 256
"""The same on a GPU."""
GPU_TILES = (16, 64, 256, 512)
"""Rows of tiles on a GPU: each is captured as a graph of its own."""
WIDTH_MULTIPLE = 32
"""Widths of caches and prefilled prompts are multiples of this, so that bits do not depend on the width."""
SMALLEST_TILE = 16
PREFILL_TOKENS = 16_384
"""Tokens of one forward pass over prompts."""
MAX_CACHE_BYTES = 4 << 30
"""A larger cache has fewer slots."""
_FLOAT_BYTES = 4
_DRAW_COPIES = 6
"""Logits, scaled logits, logprobs, probabilities, and their sums in double precision."""
_GRAPH_COPIES = 2
"""A draw's numbers outside of captured graphs and in them."""


def padded(num_positions: int) -> int:
    """Return `num_positions` rounded up to a multiple of `WIDTH_MULTIPLE`, at least one."""
    return max(WIDTH_MULTIPLE, -(-num_positions // WIDTH_MULTIPLE) * WIDTH_MULTIPLE)


def tile_sizes(most: int) -> list[int]:
    """Return the rows of each tile size up to `most`."""
    return [SMALLEST_TILE << power for power in range((most // SMALLEST_TILE).bit_length())]


def smallest_of(sizes: Sequence[int], num_rows: int) -> int:
    """Return the smallest size that has so many rows, or the largest."""
    return next((size for size in sizes if size >= num_rows), sizes[-1])


def affordable_slots(sizes: Sequence[int], bytes_of_one: int, most_bytes: int = MAX_CACHE_BYTES) -> int:
    """Return the largest of the sizes whose cache has at most `most_bytes`, or the smallest tile."""
    return max([SMALLEST_TILE, *(size for size in sizes if size * bytes_of_one <= most_bytes)])


def tile_bytes(rows: int, bytes_of_slot: int, vocab_size: int) -> int:
    """Return the memory of a tile: its cache, and the numbers of a draw."""
    return rows * (bytes_of_slot + _GRAPH_COPIES * _DRAW_COPIES * _FLOAT_BYTES * vocab_size)


def check_room(needed: int, free: int, rows: int, positions: int) -> None:
    """Raise `ConfigError` if a tile needs more bytes than are free."""
    if needed > free:
        raise ConfigError(
            f"generation decodes {rows} sequences of up to {positions:,} tokens together, for which it needs "
            f"{needed / 1e9:.1f} GB of the GPU's memory; {free / 1e9:.1f} GB are free. With the memory that is free, "
            f"sequences may have {max(0, positions * free // needed):,} tokens: lower max_tokens, shorten prompts, or "
            "end other processes on this GPU."
        )


def sampling_numbers(
    decoder: DecoderShape, vocab_size: int, *, prompts: int, samples: int, longest: int, max_tokens: int
) -> int:
    """Return the numbers in memory while `samples` completions of each of `prompts` prompts, of at most
    `longest` tokens, are generated."""
    numbers_per_position = 2 * decoder.num_layers * decoder.kv_size
    numbers_per_slot = numbers_per_position * padded(longest - 1 + max_tokens)
    sizes = tile_sizes(SLOTS)
    slots = min(smallest_of(sizes, prompts * samples), affordable_slots(sizes, _FLOAT_BYTES * numbers_per_slot))
    waiting, width = min(prompts, slots), padded(longest - 1)
    prefilled = min(waiting * width, PREFILL_TOKENS) * (6 * decoder.hidden_size + 3 * decoder.intermediate_size)
    return (
        slots * numbers_per_slot
        + waiting * width * numbers_per_position
        + max(prefilled, _DRAW_COPIES * slots * vocab_size)
    )
