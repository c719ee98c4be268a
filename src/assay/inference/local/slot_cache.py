"""Keys and values of sequences that decode together, each in its own slot.

    [slot, head, position, width], one pair a layer

A step writes one token of each slot at its own position, and shows attention the positions up to the longest sequence,
in multiples of `WIDTH_MULTIPLE`. Positions beyond a slot's own (from its predecessor, or padding) are masked by the
caller. Memory starts as zeros, because a masked position still takes part with weight 0, and 0 times an uninitialized
number may be NaN.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from assay.base.shapes import Float, Int64
from assay.inference.local.memory import padded

Prefix = Sequence[tuple[Float[Tensor, "prompt head position width"], Float[Tensor, "prompt head position width"]]]
"""Keys and values of prefilled prompts, for each layer."""


class SlotCache(Cache):  # type: ignore[misc]
    """A cache for `past_key_values` of transformers' models."""

    def __init__(self, num_slots: int, num_positions: int) -> None:
        """Room for `num_slots` sequences of `num_positions` tokens."""
        super().__init__(layers=[])
        self._shape = (num_slots, padded(num_positions))
        self._held: list[tuple[Tensor, Tensor]] = []
        self._rows = self._at = torch.zeros(0, dtype=torch.long)
        self._width = 0

    def write_at(self, positions: Int64[Tensor, "row"], width: int) -> None:
        """Set the positions of the next step's tokens in the first slots; attention sees `width` positions."""
        self._rows = torch.arange(len(positions), device=positions.device)
        self._at, self._width = positions, width

    def update(
        self,
        key_states: Float[Tensor, "row head 1 width"],
        value_states: Float[Tensor, "row head 1 value_width"],
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[Float[Tensor, "row head place width"], Float[Tensor, "row head place value_width"]]:
        """Write a step's keys and values; return what attention sees."""
        keys, values = self._layer(layer_idx, key_states, value_states)
        keys[self._rows, :, self._at] = key_states[:, :, 0]
        values[self._rows, :, self._at] = value_states[:, :, 0].to(values.dtype)
        seen = (slice(len(key_states)), slice(None), slice(self._width))
        return keys[seen], values[seen]

    def load(self, slots: Int64[Tensor, "slot"], prefix: Prefix, rows: Int64[Tensor, "slot"]) -> None:
        for index, (prefix_keys, prefix_values) in enumerate(prefix):
            keys, values = self._layer(index, prefix_keys, prefix_values)
            keys[slots, :, : prefix_keys.shape[2]] = prefix_keys[rows]
            values[slots, :, : prefix_values.shape[2]] = prefix_values[rows].to(values.dtype)

    def move(self, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        for keys, values in self._held:
            keys[to_slots] = keys[from_slots]
            values[to_slots] = values[from_slots]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Return 0: rows have different lengths, which position ids tell."""
        return 0

    def _layer(
        self, index: int, keys: Float[Tensor, "..."], values: Float[Tensor, "..."]
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """Return keys and values of a layer, allocated at first use with its heads and width.

        Under autocast, keys are in float32 (after rotary embedding) and values in bfloat16, or both in float32
        if they come from transformers' cache: here both have the type of the keys.
        """
        while len(self._held) <= index:
            num_slots, num_positions = self._shape
            self._held.append(
                (
                    keys.new_zeros(num_slots, keys.shape[1], num_positions, keys.shape[3]),
                    keys.new_zeros(num_slots, values.shape[1], num_positions, values.shape[3]),
                )
            )
        return self._held[index]
