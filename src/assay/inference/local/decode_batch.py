"""Slots of a decoding batch: arrays on the device with an entry for each slot, and a queue of prompts.

The host handles prompts when they enter and leave; between tokens only whole arrays move, on the device. The module
knows no network: prefixes come from a function, tokens from the caller.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from assay.base.shapes import Float32, Float64, Int64
from assay.inference.local.memory import padded
from assay.inference.local.paged_cache import PagedCache, Prefix, upload
from assay.inference.local.stop_tokens import Ends
from assay.inference.rollout import Prompt, Rollout, uniforms
from assay.models.determinism import distinct_writes

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

    @property
    def next_group(self) -> int:
        """The group of the next prompt."""
        return int(self._group[self._next]) if self else len(self._firsts)

    def group_of(self, prompt: int) -> int:
        return int(self._group[prompt])

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
        self._prefixes = {group: found for group, found in self._prefixes.items() if group >= self.next_group}
        return list(by_prefix.values())

    def _prefix_of(self, group: int) -> tuple[Prefix | None, int]:
        if group >= self._num_prefilled:
            upcoming = range(group, min(len(self._firsts), group + self._at_once))
            self._prefixes |= dict.fromkeys(upcoming, (None, 0))
            for part, prefix in self._prefill([self._prompts[self._firsts[member_group]] for member_group in upcoming]):
                self._prefixes |= {upcoming[member]: (prefix, row) for row, member in enumerate(part)}
            self._num_prefilled = upcoming.stop
        return self._prefixes[group]


class _Snapshot(NamedTuple):
    """What the host sees of the sequences at a look."""

    number: int
    arrays: Sequence[np.ndarray]
    """Count, done, tokens and logprobs, in the host's memory."""
    row_of: Int64[np.ndarray, "slot"]
    """Row of each slot's sequence: sequences may move after the look."""
    is_copied: Any
    """A CUDA event; None: the arrays are complete."""


class DecodeTile:
    """The sequences that decode together: an entry of each array for each slot; the first `rows` take part.

    All state that changes from token to token is on the device. The host sees it at looks, and writes a slot's state
    when its sequence changes. With `looks_lag` a look shows the state of the look before, so that the host never waits
    for the newest step.
    """

    def __init__(
        self, cache: PagedCache, max_tokens: int, ends: Ends, sizes: Sequence[int], *, looks_lag: bool
    ) -> None:
        """`sizes`: numbers of rows to which the tile may shrink."""
        num_slots, self._device = len(cache.table), cache.table.device
        self.cache = cache
        self._sizes, self._looks_lag, self._max_tokens, self._ends = sizes, looks_lag, max_tokens, ends
        self._state = torch.zeros(3, num_slots, dtype=torch.int64, device=self._device)
        self._done = torch.ones(num_slots, dtype=torch.bool, device=self._device)
        self._tokens = torch.zeros(num_slots, max_tokens + 1, dtype=torch.int64, device=self._device)
        """The last column takes the tokens of slots that are done."""
        self._logprobs = torch.zeros(num_slots, max_tokens + 1, device=self._device)
        self._draws = torch.zeros(num_slots, max_tokens + 1, dtype=torch.float64, device=self._device)
        """The uniform draw of each token."""
        self._is_end = upload(ends.is_end, self._device)
        self._resize(num_slots)
        # The host's.
        self.prompt = np.full(num_slots, BLANK)
        self._start = np.zeros((3, num_slots), np.int64)
        """Position, steps and looks at the beginning of each slot's sequence."""
        self._searched = np.zeros(num_slots, np.int64)
        """Tokens in which stop strings were searched."""
        self._is_stale = np.zeros(num_slots, np.bool_)
        """Slots that the device goes on with, after a stop string."""
        self._num_steps = self._num_looks = 0
        self._pending: _Snapshot | None = None

    def _resize(self, rows: int) -> None:
        """Let the first `rows` slots take part."""
        self.rows = rows
        self.last, self.position, self.count = self._state[:, :rows]
        """The newest token, which is the next input, and its position; number of sampled tokens."""
        arrays: tuple[Tensor, Tensor, Tensor, Tensor]
        arrays = self.count, self._done[:rows], self._tokens[:rows], self._logprobs[:rows]
        self._of_rows = arrays
        self._numbers = [array.numpy() for array in arrays] if self._device.type == "cpu" else []

    # -- on the device: no operation waits for it

    @property
    def draws(self) -> Float64[Tensor, "row"]:
        """The uniform draw of each slot's next token."""
        return self._draws[: self.rows].gather(1, self._column())[:, 0]

    def append(self, tokens: Int64[Tensor, "row"], logprobs: Float32[Tensor, "row"]) -> None:
        """Add a token to each sequence that is not done; slots that are done go on as blank ones."""
        count, done, all_tokens, all_logprobs = self._of_rows
        column = self._column()
        with distinct_writes():
            all_tokens.scatter_(1, column, tokens[:, None])
            all_logprobs.scatter_(1, column, logprobs[:, None])
        count.add_(~done)
        done.logical_or_(self._is_end[tokens]).logical_or_(count == self._max_tokens)
        self.last.copy_(tokens.masked_fill(done, 0))
        self.position.add_(1).masked_fill_(done, 0)
        if self.cache.pages_of_slot > 1:
            table = self.cache.table[: self.rows]
            table.copy_(torch.where(done[:, None], self.cache.home[: self.rows], table))

    def _column(self) -> Int64[Tensor, "row 1"]:
        """Return where each slot's next token is written."""
        count, done, _, _ = self._of_rows
        return count.masked_fill(done, self._max_tokens)[:, None]

    # -- on the host

    def stepped(self) -> None:
        """Count a step."""
        self._num_steps += 1

    @property
    def width(self) -> int:
        """Positions that attention has to see in the next step, at most."""
        position, began, _ = self._start[:, : self.rows]
        newest = position + np.minimum(self._num_steps - began, self._max_tokens - 1)
        return padded(int(np.where(self.prompt[: self.rows] == BLANK, 0, newest).max()) + 1)

    @property
    def steps_left(self) -> int:
        """Steps after which all sequences have their last token, at most."""
        began = self._start[1, self.prompt != BLANK]
        return 0 if not len(began) else max(0, int(began.max()) + self._max_tokens - self._num_steps)

    def free(self) -> list[int]:
        found: list[int] = np.flatnonzero(self.prompt == BLANK).tolist()
        return found

    def admit(self, admitted: Sequence[Admitted], prompts: Sequence[Prompt], waiting: PromptQueue) -> None:
        """Give prompts their slots."""
        for indices, slots, prefix, rows in admitted:
            loaded: list[tuple[int, int, int]] = []
            for index, slot, row in zip(indices, slots, rows, strict=True):
                prefix_length = len(prompts[index].tokens) - 1
                positions = prefix_length + self._max_tokens
                pages = self.cache.occupy(slot, waiting.group_of(index), prefix=prefix_length, positions=positions)
                loaded += [(row, part, page) for part, page in pages]
            if prefix is not None and loaded:
                self.cache.load(prefix, *upload(np.array(loaded).T.copy(), self._device))
            self.prompt[slots] = indices
            self._start[0, slots] = [len(prompts[index].tokens) - 1 for index in indices]
            self._start[1, slots], self._start[2, slots] = self._num_steps, self._num_looks
            self._searched[slots] = 0
        self.cache.release_groups_before(waiting.next_group)
        slots = [slot for _, slots, _, _ in admitted for slot in slots]
        self._write(slots, [prompts[index] for indices, _, _, _ in admitted for index in indices])

    def shrink(self) -> None:
        """If fewer rows suffice, move the last sequences to free slots before them."""
        occupied = np.flatnonzero(self.prompt != BLANK)
        rows = next((size for size in self._sizes if size >= len(occupied)), self.rows)
        if rows >= self.rows:
            return
        from_slots = occupied[occupied >= rows].tolist()
        to_slots = self.free()[: len(from_slots)]
        if from_slots:
            self._move(from_slots, to_slots)
        self._resize(rows)

    def look(self) -> dict[int, Rollout]:
        """Return the rollouts that were complete at the look before, by prompt, and free their slots.

        If looks do not lag, or no sequence has a token to come, the newest state is seen.
        """
        is_newest = not self._looks_lag or not self.steps_left
        newest = self._snapshot(is_copy=self._looks_lag)
        seen, self._pending = (newest, None) if is_newest else (self._pending, newest)
        return self._completed(seen) if seen is not None else {}

    def blank_stale(self) -> None:
        """Blank slots that are free for the host and not for the device."""
        if self._is_stale.any():
            self._write(np.flatnonzero(self._is_stale).tolist(), [])

    def _completed(self, seen: _Snapshot) -> dict[int, Rollout]:
        if seen.is_copied is not None:
            seen.is_copied.synchronize()
        count, done, tokens, logprobs = seen.arrays
        slots = np.flatnonzero((self.prompt[: self.rows] != BLANK) & (self._start[2, : self.rows] < seen.number))
        rows = seen.row_of[slots]
        lengths = self._ends.stop_lengths(tokens, rows, self._searched[slots], count[rows])
        self._searched[slots] = count[rows]
        is_over = done[rows] | (lengths > 0)
        if not is_over.any():
            return {}
        self._is_stale[slots] = (lengths > 0) & ~done[rows]
        rollouts = {}
        for slot, row, stop_length in zip(
            slots[is_over].tolist(), rows[is_over].tolist(), lengths[is_over].tolist(), strict=True
        ):
            own = slice(stop_length or int(count[row]))
            is_stopped = stop_length > 0 or bool(self._ends.is_end[tokens[row, own][-1]])
            rollouts[int(self.prompt[slot])] = Rollout(
                tokens[row, own].copy(), logprobs[row, own].copy(), "stop" if is_stopped else "length"
            )
            self.cache.vacate(slot)
        self.prompt[slots[is_over]] = BLANK
        return rollouts

    def _write(self, slots: Sequence[int], prompts: Sequence[Prompt]) -> None:
        """Write the beginning of sequences to their slots, or blanks if there are no prompts."""
        if not slots:
            return
        state = np.zeros((4, len(slots)), np.int64)
        if prompts:
            state[0] = [prompt.tokens[-1] for prompt in prompts]
            state[1] = [len(prompt.tokens) - 1 for prompt in prompts]
        state[3] = slots
        written = upload(state, self._device)
        with distinct_writes():
            self._state[:, written[3]] = written[:3]
            self._done[written[3]] = not prompts
            if prompts:
                keys = np.array([prompt.key % 2**64 for prompt in prompts], np.uint64)
                draws = uniforms(keys[:, None], np.arange(self._max_tokens + 1))
                self._draws[written[3]] = upload(draws, self._device)
            if self.cache.pages_of_slot > 1:
                self.cache.table[written[3]] = upload(self.cache.tables(slots), self._device)
        self._is_stale[slots] = False

    def _move(self, from_slots: Sequence[int], to_slots: Sequence[int]) -> None:
        self.cache.move(from_slots, to_slots)
        sources, targets = (upload(np.array(slots), self._device) for slots in (from_slots, to_slots))
        with distinct_writes():
            self._state[:, targets] = self._state[:, sources]
            for values in (self._done, self._tokens, self._logprobs, self._draws):
                values[targets] = values[sources]
            if self.cache.pages_of_slot > 1:
                is_done = self._done[targets][:, None]
                tables = upload(self.cache.tables(to_slots), self._device)
                self.cache.table[targets] = torch.where(is_done, self.cache.home[targets], tables)
        for of_host in (self.prompt, self._start.T, self._searched):
            of_host[to_slots] = of_host[from_slots]
        self._is_stale[to_slots] = False
        self.prompt[from_slots] = BLANK
        if self._pending is not None:
            self._pending.row_of[to_slots] = self._pending.row_of[from_slots]

    def _snapshot(self, *, is_copy: bool) -> _Snapshot:
        self._num_looks += 1
        if self._device.type == "cpu":
            arrays = [numbers.copy() for numbers in self._numbers] if is_copy else self._numbers
            return _Snapshot(self._num_looks, arrays, np.arange(len(self.prompt)), None)
        arrays = [
            torch.empty(array.shape, dtype=array.dtype, pin_memory=True).copy_(array, non_blocking=True).numpy()
            for array in self._of_rows
        ]
        is_copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        is_copied.record()
        return _Snapshot(self._num_looks, arrays, np.arange(len(self.prompt)), is_copied)


def groups_of(prompts: Sequence[Prompt]) -> list[Sequence[Prompt]]:
    """Return consecutive prompts with equal tokens as groups."""
    pairs = enumerate(pairwise(prompts), start=1)
    firsts = [index for index, (one, next_) in pairs if not np.array_equal(one.tokens, next_.tokens)]
    bounds = [0, *firsts, len(prompts)] if prompts else [0]
    return [prompts[begin:end] for begin, end in pairwise(bounds)]
