"""Slots of a decoding batch: arrays with an entry for each slot, and a queue of prompts.

Python handles prompts when they enter and leave; between tokens only whole arrays move. The module knows no
network: prefixes come from a function, logits from the caller.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

from assay.base.shapes import Float32, Int64
from assay.inference.local.memory import tile_rows
from assay.inference.local.slot_cache import Prefix, SlotCache
from assay.inference.local.stop_tokens import Ends
from assay.inference.rollout import Prompt, Rollout

BLANK = -1
Prefill = Callable[[Sequence[Prompt]], Iterator[tuple[list[int], Prefix]]]
"""Maps prompts to (their indices, the prefix with a row for each); prompts of one token have none."""


Admitted = tuple[list[int], list[int], Prefix | None, list[int]]
"""Prompts that enter the tile, with their slots; and their prefix, with its row for each."""


class PromptQueue:
    """Prompts without a slot, in order; each group is prefilled once, some groups in advance."""

    def __init__(self, prompts: Sequence[Prompt], prefill: Prefill, *, at_once: int) -> None:
        self._prompts, self._prefill, self._at_once = prompts, prefill, at_once
        sizes = [len(group) for group in groups_of(prompts)]
        self._group = np.repeat(np.arange(len(sizes)), sizes)
        self._firsts = np.cumsum([0, *sizes[:-1]])
        self._next = 0
        self._num_prefilled = 0
        """Groups."""
        self._prefixes: dict[int, tuple[Prefix | None, int]] = {}
        """Group -> prefix and row, while members of the group are waiting."""

    def __bool__(self) -> bool:
        return self._next < len(self._prompts)

    def next(self, free: Sequence[int]) -> list[Admitted]:
        """Return a prompt for each free slot, those of one prefix together."""
        occupied = range(self._next, min(len(self._prompts), self._next + len(free)))
        self._next = occupied.stop
        by_prefix: dict[int, Admitted] = {}
        for index, slot in zip(occupied, free, strict=False):
            prefix, row = self._prefix_of(int(self._group[index]))
            prompts, slots, _, rows = by_prefix.setdefault(id(prefix), ([], [], prefix, []))
            prompts.append(index)
            slots.append(slot)
            rows.append(row)
        behind = self._group[self._next] if self else len(self._firsts)
        self._prefixes = {group: found for group, found in self._prefixes.items() if group >= behind}
        return list(by_prefix.values())

    def _prefix_of(self, group: int) -> tuple[Prefix | None, int]:
        if group >= self._num_prefilled:
            upcoming = range(group, min(len(self._firsts), group + self._at_once))
            self._prefixes |= dict.fromkeys(upcoming, (None, 0))
            for part, prefix in self._prefill([self._prompts[self._firsts[member_group]] for member_group in upcoming]):
                self._prefixes |= {upcoming[member]: (prefix, row) for row, member in enumerate(part)}
            self._num_prefilled = upcoming.stop
        return self._prefixes[group]


class DecodeTile:
    """The sequences that decode together: an entry of each array for each slot; the first `rows` take part."""

    def __init__(self, num_slots: int, max_tokens: int) -> None:
        self.rows = num_slots
        self.prompt = np.full(num_slots, BLANK)
        self.key = np.zeros(num_slots, np.uint64)
        self.last = np.zeros(num_slots, np.int64)
        """The newest token, which is the next input."""
        self.position = np.zeros(num_slots, np.int64)
        """The newest token's position in the sequence."""
        self.count = np.zeros(num_slots, np.int64)
        """Tokens sampled."""
        self.tokens = np.zeros((num_slots, max_tokens), np.int64)
        self.logprobs = np.zeros((num_slots, max_tokens), np.float32)

    def free(self) -> list[int]:
        found: list[int] = np.flatnonzero(self.prompt == BLANK).tolist()
        return found

    def admit(
        self,
        admitted: Sequence[Admitted],
        prompts: Sequence[Prompt],
        cache: SlotCache,
        device: torch.device,
    ) -> None:
        for prompt_indices, slots, prefix, rows in admitted:
            if prefix is not None:
                cache.load(torch.tensor(slots, device=device), prefix, torch.tensor(rows, device=device))
            self.prompt[slots] = prompt_indices
            self.key[slots] = [prompts[index].key % 2**64 for index in prompt_indices]
            self.last[slots] = [prompts[index].tokens[-1] for index in prompt_indices]
            self.position[slots] = [len(prompts[index].tokens) - 1 for index in prompt_indices]
            self.count[slots] = 0

    def shrink(self, cache: SlotCache) -> None:
        """If fewer rows suffice, move the last sequences to free slots before them."""
        occupied = np.flatnonzero(self.prompt != BLANK)
        rows = tile_rows(len(occupied))
        if rows >= self.rows:
            return
        from_slots = occupied[occupied >= rows].tolist()
        to_slots = self.free()[: len(from_slots)]
        if from_slots:
            cache.move(from_slots, to_slots)
        for values in (
            self.prompt, self.key, self.last, self.position, self.count, self.tokens, self.logprobs,
        ):  # fmt: skip
            values[to_slots] = values[from_slots]
        self.prompt[from_slots] = BLANK
        self.rows = rows

    def advance(
        self, tokens: Int64[np.ndarray, "row"], logprobs: Float32[np.ndarray, "row"], ends: Ends
    ) -> dict[int, Rollout]:
        """Add a token to each row; return the completed rollouts by prompt and free their slots."""
        slots = np.flatnonzero(self.prompt[: self.rows] != BLANK)
        tokens, logprobs = tokens[slots], logprobs[slots]
        self.tokens[slots, self.count[slots]] = tokens
        self.logprobs[slots, self.count[slots]] = logprobs
        self.last[slots] = tokens
        self.position[slots] += 1
        self.count[slots] += 1
        is_stopped = ends.of(tokens, lambda row: self.tokens[slots[row], : self.count[slots[row]]])
        is_over = is_stopped | (self.count[slots] == self.tokens.shape[1])
        if not is_over.any():
            return {}
        finished = slots[is_over].tolist()
        rollouts = {
            int(self.prompt[slot]): Rollout(
                self.tokens[slot, : self.count[slot]].copy(),
                self.logprobs[slot, : self.count[slot]].copy(),
                "stop" if stopped else "length",
            )
            for slot, stopped in zip(finished, is_stopped[is_over].tolist(), strict=True)
        }
        self.prompt[finished] = BLANK
        self.last[finished] = self.position[finished] = self.count[finished] = 0
        return rollouts


def groups_of(prompts: Sequence[Prompt]) -> list[Sequence[Prompt]]:
    """Return consecutive prompts with equal tokens as groups."""
    pairs = enumerate(pairwise(prompts), start=1)
    firsts = [index for index, (one, next_) in pairs if not np.array_equal(one.tokens, next_.tokens)]
    bounds = [0, *firsts, len(prompts)] if prompts else [0]
    return [prompts[begin:end] for begin, end in pairwise(bounds)]
