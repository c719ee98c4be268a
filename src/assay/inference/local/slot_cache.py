"""Keys and values of many sequences that are decoded together, each in a slot of its own.

    [slot, head, place, width], one pair a layer; a place is a token's position in its sequence

A step writes one token a slot, each at its own place, and shows attention the places up to the longest
sequence, in multiples of `WIDTH_MULTIPLE`. What lies beyond a slot's own place (its predecessor's, padding) is masked
by who calls. All of it is zero in the beginning, since a masked place still takes part with weight 0, and 0
times what memory happened to hold need not be 0.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from assay.base.shapes import Float, Int64
from assay.inference.local.memory import padded


class Prefix(NamedTuple):
    """What prefilled prompts leave: [prompt, head, place, width] of each layer."""

    layers: tuple[tuple[Float[Tensor, "..."], Float[Tensor, "..."]], ...]

    @classmethod
    def of(cls, cache: DynamicCache) -> "Prefix":
        """What a forward pass left in transformers' own cache."""
        return cls(tuple((layer.keys, layer.values) for layer in cache.layers))


class SlotCache(Cache):  # type: ignore[misc]
    """What transformers' modules take for `past_key_values`."""

    def __init__(self, num_slots: int, num_positions: int) -> None:
        """Room for `num_slots` sequences of `num_positions` tokens."""
        super().__init__(layers=[])
        self._shape = (num_slots, padded(num_positions))
        self._held: list[tuple[Tensor, Tensor]] = []
        self._rows = self._at = torch.zeros(0, dtype=torch.long)
        self._width = 0

    def write_at(self, positions: Int64[Tensor, "row"], width: int) -> None:
        """The next step's tokens are of the first slots, at these places; attention sees `width` places."""
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
        """Write a step's keys and values; what attention sees of the rows."""
        keys, values = self._layer(layer_idx, key_states, value_states)
        keys[self._rows, :, self._at] = key_states[:, :, 0]
        values[self._rows, :, self._at] = value_states[:, :, 0].to(values.dtype)
        seen = (slice(len(key_states)), slice(None), slice(self._width))
        return keys[seen], values[seen]

    def load(self, slots: Int64[Tensor, "slot"], prefix: Prefix, rows: Int64[Tensor, "slot"]) -> None:
        """Begin these slots with those rows of a prefix."""
        for index, (prefix_keys, prefix_values) in enumerate(prefix.layers):
            keys, values = self._layer(index, prefix_keys, prefix_values)
            keys[slots, :, : prefix_keys.shape[2]] = prefix_keys[rows]
            values[slots, :, : prefix_values.shape[2]] = prefix_values[rows].to(values.dtype)

    def move(self, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        """Carry sequences to other slots, which were free."""
        for keys, values in self._held:
            keys[to_slots] = keys[from_slots]
            values[to_slots] = values[from_slots]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """None that all rows share: position ids say where each is."""
        return 0

    def _layer(
        self, index: int, keys: Float[Tensor, "..."], values: Float[Tensor, "..."]
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """Keys and values of a layer; made when it first has any, with heads and width as these have.

        Autocast has keys in float32 (they were turned) beside values in bfloat16, or both in float32 where they
        come out of transformers' cache: here both are as keys are.
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
