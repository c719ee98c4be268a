"""Memory of sampling; imports no torch, so that planning can use it.

slots x positions x heads     keys and values of all layers, for each decoding sequence
prompts x positions x heads   those of prompts that wait for a slot
rows x entries                logits of the tile, and copies of them while sampling
"""

from assay.models.causal_config import DecoderShape

SLOTS = 64
"""Sequences that decode together."""
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


def padded(num_positions: int) -> int:
    """Return `num_positions` rounded up to a multiple of `WIDTH_MULTIPLE`, at least one."""
    return max(WIDTH_MULTIPLE, -(-num_positions // WIDTH_MULTIPLE) * WIDTH_MULTIPLE)


def tile_rows(num_rows: int) -> int:
    """Return the rows of the smallest tile that fits."""
    rows = SMALLEST_TILE
    while rows < num_rows:
        rows *= 2
    return rows


def tile_sizes(most: int) -> list[int]:
    """Return the rows of each tile size up to `most`."""
    return [SMALLEST_TILE << power for power in range((most // SMALLEST_TILE).bit_length())]


def affordable_slots(slots: int, bytes_of_one: int) -> int:
    """Return the largest number of slots, at most `slots`, whose cache fits."""
    sizes = [size for size in tile_sizes(slots) if size * bytes_of_one <= MAX_CACHE_BYTES]
    return max([SMALLEST_TILE, *sizes])


def sampling_numbers(
    decoder: DecoderShape, vocab_size: int, *, prompts: int, samples: int, longest: int, max_tokens: int
) -> int:
    """Return the numbers in memory while `samples` completions of each of `prompts` prompts, of at most
    `longest` tokens, are generated."""
    numbers_per_position = 2 * decoder.num_layers * decoder.kv_size
    numbers_per_slot = numbers_per_position * padded(longest - 1 + max_tokens)
    slots = min(tile_rows(prompts * samples), SLOTS, affordable_slots(SLOTS, _FLOAT_BYTES * numbers_per_slot))
    waiting, width = min(prompts, slots), padded(longest - 1)
    prefilled = min(waiting * width, PREFILL_TOKENS) * (6 * decoder.hidden_size + 3 * decoder.intermediate_size)
    return (
        slots * numbers_per_slot
        + waiting * width * numbers_per_position
        + max(prefilled, _DRAW_COPIES * slots * vocab_size)
    )
