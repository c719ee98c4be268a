"""Keys and values of sequences that decode together, in pages.

    pages of a layer   [page, head, position, width], one tensor of keys and one of values
    table              [slot, index] -> page: the pages of each slot's sequence, in order

A page that holds nothing but tokens of a prompt is shared by the group's sequences. Each slot has a home page, which
has the slot's number: it holds the end of the prompt, and is the whole table of a slot without a sequence. So the slots
of a step always write to different pages.

A page may also hold a whole sequence: then the home pages are all there is, and attention sees a view of them. On a
CPU copying pages costs more than sharing them saves.

On a GPU a kernel writes and attends (`models.kernels.paged_attention`). Elsewhere the pages of the first positions, up
to the longest sequence in multiples of `WIDTH_MULTIPLE`, are gathered for transformers' own attention, and the caller
masks positions beyond a slot's own. Memory starts as zeros, because a masked position still takes part with weight 0,
and 0 times an uninitialized number may be NaN.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from assay.base.shapes import Float, Int32, Int64, Shaped
from assay.inference.local.memory import padded
from assay.models.determinism import distinct_writes

Prefix = Sequence[tuple[Float[Tensor, "prompt head position width"], Float[Tensor, "prompt head position width"]]]
"""Keys and values of prefilled prompts, for each layer."""
ATTENTION = "assay_paged"
"""Name of the paged attention in transformers' registry."""


class PagePool:
    """Counts the users of pages: a page is free once all users have returned it."""

    def __init__(self, pages: range) -> None:
        self._free = list(reversed(pages))
        self._num_users: dict[int, int] = {}

    def take(self, count: int) -> list[int]:
        """Return free pages with one user each."""
        pages = [self._free.pop() for _ in range(count)]
        self._num_users |= dict.fromkeys(pages, 1)
        return pages

    def share(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._num_users[page] += 1

    def give_back(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._num_users[page] -= 1
            if not self._num_users[page]:
                del self._num_users[page]
                self._free.append(page)

    @property
    def num_free(self) -> int:
        return len(self._free)


class PagedCache(Cache):  # type: ignore[misc]
    """A cache for `past_key_values` of transformers' models."""

    def __init__(
        self,
        num_slots: int,
        num_positions: int,
        *,
        device: torch.device,
        page_size: int | None = None,
        dtype: torch.dtype | None = None,
        kernel: Any = None,
    ) -> None:
        """Room for `num_slots` sequences of `num_positions` tokens.

        `page_size`: positions of a page, a multiple of `WIDTH_MULTIPLE`; None: all of a sequence. `dtype`: of keys
        and values; None: that of the keys (under autocast they are in float32, after rotary embedding). `kernel` is
        `paged_attention`.
        """
        super().__init__(layers=[])
        self.page_size = page_size or padded(num_positions)
        self.pages_of_slot = -(-num_positions // self.page_size)
        # Only one group at a time has members both with and without a slot; its prompt may have no member with one.
        num_pages = num_slots * self.pages_of_slot + self.pages_of_slot - 1
        self.pool = PagePool(range(num_slots, num_pages))
        self.table = torch.arange(num_slots, dtype=torch.int32, device=device)[:, None].repeat(1, self.pages_of_slot)
        self.home = self.table.clone()
        self.kernel = kernel
        self._num_pages = num_pages
        self._dtype = dtype
        self._held: list[tuple[Tensor, Tensor]] = []
        self._of_slot: list[list[int]] = [[] for _ in range(num_slots)]
        """Pages of each slot besides its home page: those before it, which are shared, and those behind it."""
        self._num_shared = [0] * num_slots
        self._of_group: dict[int, list[int]] = {}
        """Shared pages of the group with members that wait."""
        self._positions = self._at = self._page = torch.zeros(0, dtype=torch.long)
        self._width = 0

    # -- pages of slots, on the host

    def occupy(self, slot: int, group: int, *, prefix: int, positions: int) -> list[tuple[int, int]]:
        """Give a slot the pages of a sequence of `positions` tokens after `prefix` tokens of its group's prompt.

        Return (page of the prefix, page) for those to be loaded.
        """
        num_shared, num_pages = prefix // self.page_size, -(-positions // self.page_size)
        loaded: list[tuple[int, int]] = []
        if group not in self._of_group:
            self._of_group[group] = self.pool.take(num_shared)
            loaded += enumerate(self._of_group[group])
        shared = self._of_group[group]
        self.pool.share(shared)
        self._of_slot[slot] = [*shared, *self.pool.take(num_pages - num_shared - 1)]
        self._num_shared[slot] = num_shared
        if prefix % self.page_size:
            loaded.append((num_shared, slot))
        return loaded

    def vacate(self, slot: int) -> None:
        self.pool.give_back(self._of_slot[slot])
        self._of_slot[slot], self._num_shared[slot] = [], 0

    def release_groups_before(self, group: int) -> None:
        """Return shared pages of groups without waiting members."""
        for done in [number for number in self._of_group if number < group]:
            self.pool.give_back(self._of_group.pop(done))

    def tables(self, slots: Sequence[int]) -> Int32[np.ndarray, "slot index"]:
        """Return the tables of slots; behind a sequence stands the home page."""
        found = np.repeat(np.array(slots, np.int32)[:, None], self.pages_of_slot, axis=1)
        for row, slot in enumerate(slots):
            others, num_shared = self._of_slot[slot], self._num_shared[slot]
            found[row, :num_shared] = others[:num_shared]
            found[row, num_shared + 1 : len(others) + 1] = others[num_shared:]
        return found

    # -- keys and values, on the device

    def load(
        self, prefix: Prefix, rows: Int64[Tensor, "page"], parts: Int64[Tensor, "page"], pages: Int64[Tensor, "page"]
    ) -> None:
        """Copy pages of prefixes: part `parts` of row `rows` to page `pages`, which are distinct."""
        for index, (keys, values) in enumerate(prefix):
            for held, dense in zip(self._layer(index, keys, values), (keys, values), strict=True):
                with distinct_writes():
                    if self.pages_of_slot == 1:
                        held[pages, :, : dense.shape[2]] = dense[rows].to(held.dtype)
                        continue
                    whole = pad(dense, (0, 0, 0, -dense.shape[2] % self.page_size))
                    split = whole.reshape(*whole.shape[:2], -1, self.page_size, whole.shape[3])
                    held[pages] = split[rows, :, parts].to(held.dtype)

    def move(self, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        """Move sequences to other slots; the caller sets their tables."""
        sources, targets = (upload(np.array(slots), self.table.device) for slots in (from_slots, to_slots))
        for held in (tensor for pair in self._held for tensor in pair):
            with distinct_writes():
                held[targets] = held[sources]
        for from_slot, to_slot in zip(from_slots, to_slots, strict=True):
            self._of_slot[to_slot], self._of_slot[from_slot] = self._of_slot[from_slot], []
            self._num_shared[to_slot], self._num_shared[from_slot] = self._num_shared[from_slot], 0

    def write_at(self, positions: Int64[Tensor, "row"], width: int) -> None:
        """Set the positions of the next step's tokens in the first slots; attention sees `width` positions."""
        self._positions, self._width = positions, width
        if self.kernel is not None:
            return
        if self.pages_of_slot == 1:
            self._page, self._at = torch.arange(len(positions), device=positions.device), positions
            return
        index = torch.div(positions, self.page_size, rounding_mode="floor")
        self._page = self.table[: len(positions)].gather(1, index[:, None])[:, 0].long()
        self._at = positions - index * self.page_size

    def update(
        self,
        key_states: Float[Tensor, "row head 1 width"],
        value_states: Float[Tensor, "row head 1 value_width"],
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[Float[Tensor, "row head place width"], Float[Tensor, "row head place value_width"]]:
        """Write a step's keys and values; return what attention sees. The kernel writes them itself."""
        if self.kernel is not None:
            return key_states, value_states
        keys, values = self._layer(layer_idx, key_states, value_states)
        with distinct_writes():
            keys[self._page, :, self._at] = key_states[:, :, 0].to(keys.dtype)
            values[self._page, :, self._at] = value_states[:, :, 0].to(values.dtype)
        return self._seen(keys), self._seen(values)

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "row head width"],
        key: Float[Tensor, "row kv_head width"],
        value: Float[Tensor, "row kv_head width"],
        scale: float,
    ) -> Float[Tensor, "row head width"]:
        """Write a step's keys and values of a layer and attend, by the kernel."""
        keys, values = self._layer(layer, key[:, :, None], value[:, :, None])
        arguments = (query.to(keys.dtype), key.to(keys.dtype), value.to(keys.dtype), keys, values)
        found: Tensor = self.kernel(*arguments, self.table[: len(query)], self._positions, scale)
        return found.to(query.dtype)

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Return 0: rows have different lengths, which position ids tell."""
        return 0

    def _seen(self, pages: Float[Tensor, "page head place width"]) -> Float[Tensor, "row head place width"]:
        num_rows = len(self._positions)
        if self.pages_of_slot == 1:
            return pages[:num_rows, :, : self._width]
        gathered = pages[self.table[:num_rows, : -(-self._width // self.page_size)]]
        return gathered.transpose(1, 2).flatten(2, 3)[:, :, : self._width]

    def _layer(
        self, index: int, keys: Float[Tensor, "..."], values: Float[Tensor, "..."]
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """Return the pages of a layer, allocated at first use with its heads and width."""
        while len(self._held) <= index:
            shape = (self._num_pages, keys.shape[1], self.page_size)
            dtype = self._dtype or keys.dtype
            self._held.append(
                (
                    keys.new_zeros(*shape, keys.shape[3], dtype=dtype),
                    keys.new_zeros(*shape, values.shape[3], dtype=dtype),
                )
            )
        return self._held[index]


def upload(array: Shaped[np.ndarray, "..."], device: torch.device) -> Shaped[Tensor, "..."]:
    """Return an array on the device; the host does not wait for the copy."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _paged_attention(
    module: Any,
    query: Float[Tensor, "row head 1 width"],
    key: Float[Tensor, "row kv_head 1 width"],
    value: Float[Tensor, "row kv_head 1 width"],
    attention_mask: None,  # noqa: ARG001
    *,
    scaling: float | None = None,
    page_cache: PagedCache,
    **_: Any,
) -> tuple[Float[Tensor, "row 1 head width"], None]:
    """Attention as transformers calls it; the cache comes as a keyword of the model."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return page_cache.attend(module.layer_idx, query[:, :, 0], key[:, :, 0], value[:, :, 0], scale)[:, None], None


AttentionInterface.register(ATTENTION, _paged_attention)


@contextmanager
def attention_of(network: Any, cache: PagedCache) -> Iterator[Mapping[str, Any]]:
    """Let the network's steps attend by the cache's kernel, if it has one; yield the keywords for the network.

    Transformers builds no mask for an attention that it does not know.
    """
    if cache.kernel is None:
        yield {}
        return
    config = network.config
    before = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        yield {"page_cache": cache}
    finally:
        config._attn_implementation = before
