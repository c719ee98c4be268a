"""Attention of a decode step over keys and values in pages: each row's newest query over the tokens of its own pages.

query [row, head, width]          page_table [row, slot] --> pages [page, kv_head, 64, width]
newest key, value --written at position--> page --> tokens 0 .. position --> [row, head, width]
"""

import torch
from torch import Tensor

from assay.base.shapes import Float, Int32, Int64
from assay.models.determinism import distinct_writes
from assay.models.kernels.triton_use import runs_triton

PAGE_TOKENS = 64
"""Tokens of a page."""


def paged_attention(
    query: Float[Tensor, "row head width"],
    new_key: Float[Tensor, "row kv_head width"],
    new_value: Float[Tensor, "row kv_head width"],
    key_pages: Float[Tensor, "page kv_head 64 width"],
    value_pages: Float[Tensor, "page kv_head 64 width"],
    page_table: Int32[Tensor, "row slot"],
    positions: Int64[Tensor, "row"],
    scale: float,
) -> Float[Tensor, "row head width"]:
    """Write the newest keys and values at `positions`; return attention over the tokens up to them, in query's type.

    Query head h attends to key head h // (head / kv_head); scores are `scale` times products of query and key. A row's
    newest page belongs to this row alone; earlier pages may be shared.
    """
    if runs_triton(query.device):
        from assay.models.kernels.paged_attention_kernel import attend_to_pages  # imports triton

        return attend_to_pages(query, new_key, new_value, key_pages, value_pages, page_table, positions, scale)
    slots, offsets = positions // PAGE_TOKENS, positions % PAGE_TOKENS
    pages = page_table.gather(1, slots[:, None])[:, 0].long()
    with distinct_writes():
        key_pages[pages, :, offsets] = new_key.to(key_pages.dtype)
        value_pages[pages, :, offsets] = new_value.to(value_pages.dtype)
    keys, values = (_gathered(pages_, page_table).to(query.dtype) for pages_ in (key_pages, value_pages))
    is_seen = torch.arange(keys.shape[2], device=query.device) <= positions[:, None]
    attended = torch.nn.functional.scaled_dot_product_attention(
        query[:, :, None], keys, values, is_seen[:, None, None], scale=scale, enable_gqa=True
    )
    return attended[:, :, 0]


def _gathered(
    pages: Float[Tensor, "page kv_head 64 width"], page_table: Int32[Tensor, "row slot"]
) -> Float[Tensor, "row kv_head token width"]:
    """Return the tokens of each row, in order."""
    return pages[page_table.long()].transpose(1, 2).flatten(2, 3)
