"""The estimate of an operator's time: closed forms of tiles, waves and alignment, and a published step."""

import pytest

from assay.models.traced import PassTrace, Product, TracedAttention
from assay.records.devices import DEVICES, DeviceSheet
from assay.throughput.device_time import (
    ALIGNED_SHARE,
    HOST_S,
    REACHED_BYTES,
    REACHED_FLOPS,
    attention_time,
    pass_time,
    product_time,
    vocabulary_time,
)

TILES_OF_A_WAVE = 10
DEVICE = DeviceSheet(TILES_OF_A_WAVE, 1e12, 1e11, 1e30, 1e9, 1e9, None, "a device without limits of memory")
"""Ten multiprocessors, so that one tile of 256 x 128 on each fills [2560, 128]."""
RATE_OF_LARGEST_TILE = REACHED_FLOPS * 1e12 * (256 * 128 / 384) / (256 * 128 / 384 + 10)


def product(
    m: int, n: int = 128, k: int = 640, *, row_multiple: int = 64, item_bytes: int = 2, batch: int = 1
) -> Product:
    return Product("layer", "forward", batch, m, n, k, item_bytes, row_multiple)


def test_a_full_wave_loses_nothing() -> None:
    found = product_time(product(2560), DEVICE)
    assert found.seconds == pytest.approx(2 * 2560 * 128 * 640 / RATE_OF_LARGEST_TILE)
    assert found.lost_s == pytest.approx({"tiles": 0, "waves": 0, "alignment": 0})


def test_a_row_above_a_wave_costs_another_wave_of_smaller_tiles() -> None:
    full, above = (product_time(product(rows), DEVICE) for rows in (2560, 2561))
    assert above.seconds > 1.09 * full.seconds
    assert above.lost_s["tiles"] + above.lost_s["waves"] == pytest.approx(above.seconds - full.seconds, rel=0.02)


def test_the_last_tile_is_computed_whole_along_each_size() -> None:
    whole = product_time(product(2560, k=640), DEVICE).seconds
    assert product_time(product(2560 - 100, k=640), DEVICE).seconds == pytest.approx(whole)
    assert product_time(product(2560, k=640 - 60), DEVICE).seconds == pytest.approx(whole)
    assert product_time(product(2560, k=640 - 64), DEVICE).seconds == pytest.approx(whole * 576 / 640)


@pytest.mark.parametrize(("row_multiple", "num_bytes"), [(1, 2), (2, 4), (4, 8), (6, 4), (8, 16), (24, 16)])
def test_rows_are_aligned_by_the_largest_power_of_two_bytes(row_multiple: int, num_bytes: int) -> None:
    aligned, found = (product_time(product(2560, row_multiple=item), DEVICE) for item in (64, row_multiple))
    assert found.seconds == pytest.approx(aligned.seconds / ALIGNED_SHARE[num_bytes])
    assert found.lost_s["alignment"] == pytest.approx(found.seconds - aligned.seconds)


def test_float32_needs_no_alignment() -> None:
    uneven, even = (product_time(product(2560, row_multiple=item, item_bytes=4), DEVICE) for item in (1, 64))
    assert uneven == even


def test_matrices_have_to_come_from_memory() -> None:
    narrow = product(8, 4096, 4096)
    found = product_time(narrow, DEVICES["H100"])
    assert found.seconds == pytest.approx(narrow.num_bytes / (0.9 * DEVICES["H100"].memory_bytes_per_s))


def attention(width: int, *, lengths: tuple[int, ...] = (1280,), heads: int = 1) -> TracedAttention:
    return TracedAttention("attention", "forward", heads, heads, width, lengths, is_causal=False, item_bytes=2)


def test_a_head_of_60_is_computed_as_one_of_64_and_copied() -> None:
    device = DEVICE._replace(memory_bytes_per_s=1e12)
    of_60, of_64 = (attention_time(attention(width), device) for width in (60, 64))
    assert of_60.seconds - of_60.lost_s["alignment"] == pytest.approx(of_64.seconds)
    assert (
        of_60.lost_s["tiles"] == pytest.approx(of_64.seconds * 4 / 64)
        and of_60.lost_s["alignment"] > 0 == of_64.lost_s["alignment"]
    )


def test_a_block_of_queries_above_a_wave_costs_another_wave() -> None:
    full, above = (attention_time(attention(64, lengths=(128,) * blocks), DEVICE) for blocks in (10, 11))
    assert full.lost_s["waves"] == pytest.approx(0) and above.seconds == pytest.approx(2 * full.seconds)


@pytest.mark.parametrize(("size", "used"), [(50_257, 50_257), (50_304, 50_257), (50_304, 25_000), (40, 40), (40, 9)])
def test_the_losses_of_a_vocabulary_are_parts_of_its_time(size: int, used: int) -> None:
    head = product(4096, size, 768, row_multiple=size if size % 2 else 8)
    found = vocabulary_time(head, DEVICES["H100"], size=size, used=used)
    assert found.seconds == product_time(head, DEVICES["H100"]).seconds
    assert all(lost_s >= 0 for lost_s in found.lost_s.values())
    assert sum(found.lost_s.values()) < found.seconds
    assert (found.lost_s["vocabulary"] > 0) == (size != 40 or used != 40)


def test_entries_that_no_token_uses_are_lost_to_the_vocabulary() -> None:
    head = product(2560, 128)
    half, whole = (vocabulary_time(head, DEVICE, size=128, used=used) for used in (64, 128))
    assert half.lost_s["vocabulary"] == pytest.approx(half.seconds / 2) and whole.lost_s["vocabulary"] == 0


def test_a_pass_that_is_not_captured_takes_as_long_as_the_host_starts_its_kernels() -> None:
    trace = PassTrace((product(2560),), (), 10**6, 100, 0, 0, 0, 1, 2560)
    captured, started = (pass_time(trace, DEVICES["H100"], is_captured=flag) for flag in (True, False))
    assert captured.host == 0 and captured.seconds < started.seconds == pytest.approx(100 * HOST_S)
    large = trace._replace(other_bytes=10**12)
    assert pass_time(large, DEVICES["H100"], is_captured=False).host == 0


TOKENS, WIDTH = 12 * 1024, 768


def nano_gpt_seconds(vocabulary: int) -> float:
    """A pass of nanoGPT (124 M weights, 12 rows of 1,024 tokens, compiled) on an A100."""

    def forward_and_backward(inputs: int, outputs: int, row_multiple: int = 64) -> float:
        sizes = ((TOKENS, outputs, inputs), (TOKENS, inputs, outputs), (outputs, inputs, TOKENS))
        of_sizes = (product(m, n, k, row_multiple=row_multiple) for m, n, k in sizes)
        return sum(product_time(item, DEVICES["A100"]).seconds for item in of_sizes)

    matrices = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
    layers = 12 * sum(forward_and_backward(*sizes) for sizes in matrices)
    head = forward_and_backward(WIDTH, vocabulary, 1 if vocabulary % 2 else 64)
    rows = TracedAttention("", "forward", 12, 12, 64, (1024,) * 12, is_causal=True, item_bytes=2)
    directions = (rows, rows._replace(direction="backward"))
    fused = 12 * sum(attention_time(item, DEVICES["A100"]).seconds for item in directions)
    # Around the products: 2.2 MB a token as compiled, and the loss's logits, written and read in both types.
    other_bytes = TOKENS * (2.2e6 + 16 * vocabulary)
    return layers + head + fused + other_bytes / (REACHED_BYTES * DEVICES["A100"].memory_bytes_per_s)


def test_the_padded_vocabulary_of_nano_gpt_is_worth_what_was_published() -> None:
    assert nano_gpt_seconds(50_257) / nano_gpt_seconds(50_304) == pytest.approx(1.25, abs=0.05)
