"""The Triton kernel of `paged_attention`: no mask, no padded width, and no copy of the pages.

A row's bits do not depend on other rows or on their number: a program computes all query heads of one row's key head
over one segment of this row's pages, and a second kernel adds the segments in order (the online softmax of Milakov and
Gimelshein 2018, in float32). A single segment is the result; adding it to nothing would give the same bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from assay.base.shapes import Float, Int32, Int64

PAGES_PER_SEGMENT = 4
"""Changing it changes the bits."""
MIN_TILE = 16
"""Rows of the smallest tile of a tensor core; the query heads of a key head and their width are padded to it."""


def attend_to_pages(
    query: Float[Tensor, "row head width"],
    new_key: Float[Tensor, "row kv_head width"],
    new_value: Float[Tensor, "row kv_head width"],
    key_pages: Float[Tensor, "page kv_head 64 width"],
    value_pages: Float[Tensor, "page kv_head 64 width"],
    page_table: Int32[Tensor, "row slot"],
    positions: Int64[Tensor, "row"],
    scale: float,
) -> Float[Tensor, "row head width"]:
    """Compute `paged_attention`. Products of bfloat16 pages have bfloat16 factors and float32 sums."""
    num_rows, num_heads, width = query.shape
    (_, num_kv_heads, page_tokens, _), num_slots = key_pages.shape, page_table.shape[1]
    num_segments = triton.cdiv(num_slots, PAGES_PER_SEGMENT)
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    if not num_rows:
        return output
    assert key_pages.shape == value_pages.shape, (key_pages.shape, value_pages.shape)
    assert key_pages.is_contiguous() and value_pages.is_contiguous(), "pages are written in place"
    sizes: dict[str, Any] = {
        "width": width,
        "GROUP": num_heads // num_kv_heads,
        "QUERIES": max(MIN_TILE, triton.next_power_of_2(num_heads // num_kv_heads)),
        "WIDTH": max(MIN_TILE, triton.next_power_of_2(width)),
        "num_warps": 4,
        "enable_fp_fusion": False,  # so that segments and their sums round alike
    }
    tensors = [query, new_key, new_value, key_pages, value_pages, page_table, positions]
    highest, total = query.new_empty((2, num_rows, num_heads, num_segments), dtype=torch.float32)
    values = query.new_empty((num_rows, num_heads, num_segments, width), dtype=torch.float32)
    _attention_kernel[(num_rows, num_kv_heads, num_segments)](
        *(tensor.contiguous() for tensor in tensors),
        *(output, highest, total, values, scale, num_slots),
        **sizes,
        PAGE_TOKENS=page_tokens,
        PAGES_PER_SEGMENT=PAGES_PER_SEGMENT,
        IS_SPLIT=num_segments > 1,
        PRODUCT_IN_FLOAT32=key_pages.dtype == torch.float32 or triton.knobs.runtime.interpret,
    )
    if num_segments > 1:
        _combine_kernel[(num_rows, num_kv_heads)](
            *(positions, output, highest, total, values, num_segments),
            **sizes,
            SEGMENT_TOKENS=PAGES_PER_SEGMENT * page_tokens,
        )
    return output


@triton.jit
def _attention_kernel(
    query,
    new_key,
    new_value,
    key_pages,
    value_pages,
    page_table,
    positions,
    output,
    part_highest,
    part_total,
    part_values,
    scale,
    num_slots,
    width: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    PAGES_PER_SEGMENT: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PRODUCT_IN_FLOAT32: tl.constexpr,
):
    """One segment of one row and key head; without IS_SPLIT, there is no other segment."""
    row = tl.program_id(0).to(tl.int64)
    kv_head, num_kv_heads = tl.program_id(1), tl.num_programs(1)
    position = tl.load(positions + row)
    last_page = (position // PAGE_TOKENS).to(tl.int32)
    first_page = tl.program_id(2) * PAGES_PER_SEGMENT
    stop_page = tl.minimum(last_page + 1, first_page + PAGES_PER_SEGMENT)
    columns = tl.arange(0, WIDTH)
    in_width = columns < width
    in_group = tl.arange(0, QUERIES) < GROUP
    heads = (row * num_kv_heads + kv_head) * GROUP + tl.arange(0, QUERIES)
    in_tile = in_group[:, None] & in_width[None, :]
    page_type = key_pages.dtype.element_ty
    queries = tl.load(query + heads[:, None] * width + columns[None, :], mask=in_tile, other=0.0)
    queries = queries.to(page_type).to(tl.float32 if PRODUCT_IN_FLOAT32 else page_type)
    newest = (row * num_kv_heads + kv_head) * width + columns
    is_written = (last_page >= first_page) & (last_page < stop_page)
    page = tl.load(page_table + row * num_slots + last_page).to(tl.int64)
    newest_at = ((page * num_kv_heads + kv_head) * PAGE_TOKENS + position % PAGE_TOKENS) * width + columns
    newest_key = _written(new_key + newest, key_pages + newest_at, in_width, is_written)
    newest_value = _written(new_value + newest, value_pages + newest_at, in_width, is_written)
    highest, total, values = _attend(
        queries, newest_key, newest_value, key_pages, value_pages, page_table + row * num_slots, kv_head,
        num_kv_heads, position, first_page, stop_page, scale, width, PAGE_TOKENS,
    )  # fmt: skip
    if IS_SPLIT:
        part = heads * tl.num_programs(2) + tl.program_id(2)
        is_seen = in_group & (first_page < stop_page)
        tl.store(part_values + part[:, None] * width + columns[None, :], values, mask=is_seen[:, None] & in_tile)
        tl.store(part_highest + part, highest, mask=is_seen)
        tl.store(part_total + part, total, mask=is_seen)
    else:
        attended = (values / total[:, None]).to(output.dtype.element_ty)
        tl.store(output + heads[:, None] * width + columns[None, :], attended, mask=in_tile)


@triton.jit
def _attend(
    queries, newest_key, newest_value, key_pages, value_pages, table, kv_head, num_kv_heads, position, first_page,
    stop_page, scale, width: tl.constexpr, PAGE_TOKENS: tl.constexpr,
):  # fmt: skip
    """Return maximum, sum of weights and weighted values of some pages."""
    columns = tl.arange(0, queries.shape[1])
    in_width = columns < width
    highest = tl.full([queries.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([queries.shape[0]], tl.float32)
    values = tl.zeros(queries.shape, tl.float32)
    for slot in range(first_page, stop_page):
        page = tl.load(table + slot).to(tl.int64)
        page_positions = tl.arange(0, PAGE_TOKENS)
        at = ((page * num_kv_heads + kv_head) * PAGE_TOKENS + page_positions)[:, None] * width + columns[None, :]
        page_positions += slot * PAGE_TOKENS
        # The newest position comes from registers: other threads may not see yet what was stored.
        is_stored = (page_positions < position)[:, None] & in_width[None, :]
        is_newest = (page_positions == position)[:, None]
        keys = tl.load(key_pages + at, mask=is_stored, other=0.0)
        keys = tl.where(is_newest, newest_key[None, :], keys).to(queries.dtype)
        page_values = tl.load(value_pages + at, mask=is_stored, other=0.0)
        page_values = tl.where(is_newest, newest_value[None, :], page_values).to(queries.dtype)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where((page_positions <= position)[None, :], scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - new_highest[:, None])
        rescale = tl.exp(highest - new_highest)
        total = total * rescale + tl.sum(weights, 1)
        weighted = tl.dot(weights.to(newest_key.dtype).to(queries.dtype), page_values, input_precision="ieee")
        values = values * rescale[:, None] + weighted
        highest = new_highest
    return highest, total, values


@triton.jit
def _written(source, target, in_width, is_written):
    """Copy a newest key or value to its position in the pages if `is_written`; return it in their type."""
    newest = tl.load(source, mask=in_width, other=0.0).to(target.dtype.element_ty)
    tl.store(target, newest, mask=in_width & is_written)
    return newest


@triton.jit
def _combine_kernel(
    positions,
    output,
    part_highest,
    part_total,
    part_values,
    num_segments,
    width: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    WIDTH: tl.constexpr,
    SEGMENT_TOKENS: tl.constexpr,
):
    """Add the segments of one row and key head, in order."""
    row = tl.program_id(0).to(tl.int64)
    num_seen = (tl.load(positions + row) // SEGMENT_TOKENS).to(tl.int32) + 1
    columns = tl.arange(0, WIDTH)
    group = tl.arange(0, QUERIES)
    in_group = group < GROUP
    in_tile = in_group[:, None] & (columns < width)[None, :]
    heads = row * tl.num_programs(1) * GROUP + tl.program_id(1) * GROUP + group
    highest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    values = tl.zeros([QUERIES, WIDTH], tl.float32)
    for segment in range(num_seen):
        part = heads * num_segments + segment
        own_highest = tl.load(part_highest + part, mask=in_group, other=0.0)
        own_total = tl.load(part_total + part, mask=in_group, other=1.0)
        own_values = tl.load(part_values + part[:, None] * width + columns[None, :], mask=in_tile, other=0.0)
        new_highest = tl.maximum(highest, own_highest)
        rescale = tl.exp(highest - new_highest)
        own_rescale = tl.exp(own_highest - new_highest)
        total = total * rescale + own_total * own_rescale
        values = values * rescale[:, None] + own_values * own_rescale[:, None]
        highest = new_highest
    attended = (values / total[:, None]).to(output.dtype.element_ty)
    tl.store(output + heads[:, None] * width + columns[None, :], attended, mask=in_tile)
