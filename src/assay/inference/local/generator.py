"""The local engine: prompts decode together, with the same bits as if each decoded alone.

    prompts --distinct ones of one padded length together--> prefixes --a free slot--> tile
    tile: one token of each slot a step --sample--> the next --end token, stop string, max_tokens--> Rollout

The network is transformers' own with a cache of slots. All state that changes from token to token is an array with an
entry for each slot. A prompt is prefilled without its last token, which is the tile's first input, so all logits come
from the tile.

The other rows of a tile must not change a row's bits. Matrix products give a row the same bits in any batch if there
are enough rows, and attention if widths are multiples of 32: tiles have 16 rows times a power of two, filled with
blanks. That holds with AVX-512 and not with AVX2, so the engine tests it on its own network. If it does not hold, tiles
of one fixed size are tested: the smallest on a CPU, where blanks cost time; on a GPU the largest that memory allows for
the prompt's length. If rows still depend on each other, each group of equal prompts decodes alone.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers.cache_utils import DynamicCache

from assay.base.errors import ConfigError
from assay.base.seeds import mix64
from assay.base.shapes import Float, Float32, Int64
from assay.inference.local.decode_batch import DecodeTile, PromptQueue, groups_of
from assay.inference.local.memory import (
    PREFILL_TOKENS,
    SLOTS,
    SMALLEST_TILE,
    affordable_slots,
    padded,
    tile_rows,
    tile_sizes,
)
from assay.inference.local.sampling import sample_tokens
from assay.inference.local.slot_cache import Prefix, SlotCache
from assay.inference.local.stop_tokens import Ends
from assay.inference.protocol import SamplingParams
from assay.inference.rollout import GenerationCancelledError, Prompt, Rollout, uniforms
from assay.models.causal import longest_sequence

_PROBE_TOKENS = 3
_PROBE_LENGTHS = (7, 45, 20, 150)


@dataclass
class Cost:
    """Seconds and rows of a generation in this process."""

    prefill_s: float = 0.0
    decode_s: float = 0.0
    """Everything but prefilling."""
    num_rows: int = 0
    """Rows of the tile, summed over its steps."""
    num_tokens: int = 0
    """Sampled tokens: rows that were not blank."""

    def metrics(self) -> Mapping[str, float]:
        return {
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "drawn_tokens_per_s": self.num_tokens / max(self.prefill_s + self.decode_s, 1e-9),
            "slot_occupancy": self.num_tokens / max(self.num_rows, 1),
        }


@runtime_checkable
class DrawObserver(Protocol):
    """Observes sampling without changing it."""

    def drew(
        self,
        prompts: Int64[np.ndarray, "row"],
        logits: Float[Tensor, "row entry"],
        tokens: Int64[Tensor, "row"],
    ) -> None:
        """Called for each step's tokens; -1 in place of a prompt marks a blank row."""
        ...

    def ended(self, prompt: int, rollout: Rollout) -> None: ...


class BatchInvariance(Enum):
    """The batches in which a row has the same bits."""

    ANY_SIZE = "in a tile of any size"
    FIXED_SIZE = "in a tile of the same size, with any other rows"
    GROUP_ONLY = "with its own group of equal prompts only"


class Generator:
    """Generates completions with a network's current weights."""

    def __init__(
        self,
        network: Any,
        *,
        ends: Collection[int],
        tokenizer: Tokenizer | None = None,
        slots: int = SLOTS,
    ) -> None:
        """`network` is a transformers model; `ends` are end tokens.

        `slots` sequences decode together; their number changes no rollout. The tokenizer detokenizes
        completions if `params.stop` needs it.
        """
        self._network = network
        self._ends = frozenset(ends)
        self._tokenizer = tokenizer
        self._slots = tile_rows(slots)
        self._ends_by_stop: dict[tuple[str, ...], Ends] = {}
        self._batch_invariance: BatchInvariance | None = None
        self.cost = Cost()
        """Cost of the last generation."""

    @property
    def batch_invariance(self) -> BatchInvariance:
        """The batches in which a rollout of this network has the same bits, as tested."""
        if self._batch_invariance is None:
            self._batch_invariance = self._probe_invariance()
        return self._batch_invariance

    @property
    def rows_are_independent(self) -> bool:
        """True if a rollout has the same bits whatever other prompts are generated with it."""
        return self.batch_invariance is not BatchInvariance.GROUP_ONLY

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        is_stopping: Callable[[], bool] = lambda: False,
        observer: DrawObserver | None = None,
    ) -> list[Rollout]:
        """Return a rollout for each prompt; consecutive prompts with equal tokens are a group and prefilled once.

        `params.seed` is not used: a prompt's key determines its samples. `is_stopping` is called between tokens; if
        true, `GenerationCancelledError` is raised.
        """
        prompts = [Prompt(np.asarray(prompt.tokens, np.int64), prompt.key) for prompt in prompts]
        self._check_lengths(prompts, params)
        ends = self._ends_of(params)
        decode_groups, self.cost = self._decode_groups(prompts, params), Cost()
        found: dict[int, Rollout] = {}
        for members, rows in decode_groups:
            decoded = self._decoded(
                [prompts[member] for member in members], params, ends, is_stopping, observer, members, rows=rows
            )
            found |= zip(members.tolist(), decoded, strict=True)
        return [found[index] for index in range(len(prompts))]

    def _decode_groups(
        self, prompts: Sequence[Prompt], params: SamplingParams
    ) -> list[tuple[Int64[np.ndarray, "member"], int | None]]:
        """Return which prompts decode together, and the tile's rows; None: as many as needed."""
        all_indices = np.arange(len(prompts))
        match self.batch_invariance:
            case BatchInvariance.ANY_SIZE:
                return [(all_indices, None)]
            case BatchInvariance.FIXED_SIZE:
                rows = np.array([self._size_for(_num_positions([prompt], params)) for prompt in prompts], np.int64)
                return [(np.flatnonzero(rows == size), int(size)) for size in np.unique(rows)]
            case BatchInvariance.GROUP_ONLY:
                bounds = np.cumsum([len(group) for group in groups_of(prompts)])[:-1]
                return [(members, None) for members in np.split(all_indices, bounds)]

    def _check_lengths(self, prompts: Sequence[Prompt], params: SamplingParams) -> None:
        longest = longest_sequence(self._network.config)
        for index, prompt in enumerate(prompts):
            if not 0 < len(prompt.tokens) <= longest - params.max_tokens:
                raise ConfigError(
                    f"prompt {index} has {len(prompt.tokens):,} tokens, max_tokens is {params.max_tokens:,}; "
                    f"the model takes 1 token at least and {longest:,} at most, completion included. Shorten "
                    "the prompt, or ask for fewer tokens."
                )

    def _ends_of(self, params: SamplingParams) -> Ends:
        stops = params.stop
        if stops and self._tokenizer is None:
            raise ConfigError("stop strings need the tokenizer that spells completions. Leave out 'stop'.")
        if stops not in self._ends_by_stop:
            self._ends_by_stop[stops] = Ends(self._ends, self._vocab_size, stops=stops, tokenizer=self._tokenizer)
        return self._ends_by_stop[stops]

    @property
    def _vocab_size(self) -> int:
        return int(self._network.get_output_embeddings().weight.shape[0])

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self._network.parameters()).device
        return device

    def _probe_invariance(self) -> BatchInvariance:
        """Test whether prompts have the same bits alone and in batches, of any size or of a fixed one."""
        params, lengths = SamplingParams(temperature=1.0, max_tokens=_PROBE_TOKENS), self._probe_lengths
        words = mix64(np.arange(max(lengths), dtype=np.uint64)) % np.uint64(self._vocab_size)
        batch_invariance = [
            Prompt(words.astype(np.int64)[-lengths[index % 4] :], index) for index in range(self._slots)
        ]
        no_ends = Ends((), self._vocab_size)

        def last_two(size: int, rows: int | None) -> list[Rollout]:
            return self._decoded(batch_invariance[-size:], params, no_ends, rows=rows)[-2:]

        def alone(rows: int | None) -> list[Rollout]:
            return [self._decoded([prompt], params, no_ends, rows=rows)[0] for prompt in batch_invariance[-2:]]

        sizes, separately = tile_sizes(self._slots), alone(None)
        if all(_are_same(last_two(size, None), separately) for size in sizes):
            return BatchInvariance.ANY_SIZE
        of_one = [size for size in sizes if size <= self._size_for(self._probe_positions)]
        is_so = all(_are_same(last_two(size, size), alone(size)) for size in of_one)
        return BatchInvariance.FIXED_SIZE if is_so else BatchInvariance.GROUP_ONLY

    @property
    def _probe_lengths(self) -> list[int]:
        room = longest_sequence(self._network.config) - _PROBE_TOKENS
        return [max(1, min(length, room)) for length in _PROBE_LENGTHS]

    @property
    def _probe_positions(self) -> int:
        return max(self._probe_lengths) - 1 + _PROBE_TOKENS

    def _size_for(self, positions: int) -> int:
        """Return the rows of a fixed-size tile for the longest sequence of its prompts."""
        if self._device.type == "cpu":
            return SMALLEST_TILE
        return self._affordable_slots(max(positions, self._probe_positions))

    @property
    def _prefilled_at_once(self) -> int:
        """Prompts of one prefill pass of fixed size."""
        return 1 if self._device.type == "cpu" else SMALLEST_TILE

    @torch.no_grad()
    def _decoded(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        ends: Ends,
        is_stopping: Callable[[], bool] = lambda: False,
        observer: DrawObserver | None = None,
        members: Int64[np.ndarray, "member"] | None = None,
        *,
        rows: int | None = None,
    ) -> list[Rollout]:
        """Return rollouts of prompts that share a tile, of a fixed number of rows or of as many as needed; `members`
        are their indices for the observer."""
        if not prompts:
            return []
        began_s, prefilled_s = time.monotonic(), self.cost.prefill_s
        positions = _num_positions(prompts, params)
        num_slots = rows or min(tile_rows(len(prompts)), self._slots, self._affordable_slots(positions))
        cache, tile = SlotCache(num_slots, positions), DecodeTile(num_slots, params.max_tokens)
        prefill = self._prefixes if rows is None else partial(self._prefixes, most=self._prefilled_at_once)
        waiting = PromptQueue(prompts, prefill, at_once=num_slots)
        rollouts: dict[int, Rollout] = {}
        with _in_evaluation(self._network):
            while len(rollouts) < len(prompts):
                if is_stopping():
                    raise GenerationCancelledError
                if waiting:
                    tile.admit(waiting.next(tile.free()), prompts, cache, self._device)
                elif rows is None:
                    tile.shrink(cache)
                self.cost.num_rows += tile.rows
                logits, tokens, logprobs = self._step(tile, cache, params)
                if observer is not None and members is not None:
                    of_rows = tile.prompt[: tile.rows]
                    observer.drew(np.where(of_rows < 0, of_rows, members[of_rows]), logits, tokens)
                for index, rollout in tile.advance(tokens.cpu().numpy(), logprobs.cpu().numpy(), ends).items():
                    rollouts[index] = rollout
                    if observer is not None and members is not None:
                        observer.ended(int(members[index]), rollout)
        self.cost.num_tokens += sum(len(rollout.tokens) for rollout in rollouts.values())
        self.cost.decode_s += time.monotonic() - began_s - (self.cost.prefill_s - prefilled_s)
        return [rollouts[index] for index in range(len(prompts))]

    def _affordable_slots(self, positions: int) -> int:
        config = self._network.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        of_one = 2 * config.num_hidden_layers * heads * width * padded(positions) * self._network.dtype.itemsize
        return affordable_slots(self._slots, of_one)

    def _step(
        self, tile: DecodeTile, cache: SlotCache, params: SamplingParams
    ) -> tuple[Float[Tensor, "row entry"], Int64[Tensor, "row"], Float32[Tensor, "row"]]:
        """Run one forward pass of the tile; return its logits, and a token with its logprob for each row."""
        rows, device = slice(tile.rows), self._device
        positions = torch.from_numpy(tile.position[rows]).to(device)
        width = padded(int(tile.position[rows].max()) + 1)
        cache.write_at(positions, width)
        logits = self._network(
            input_ids=torch.from_numpy(tile.last[rows]).to(device)[:, None],
            position_ids=positions[:, None],
            attention_mask=_masks(self._network, positions, width),
            past_key_values=cache,
            use_cache=True,
        ).logits[:, -1]
        uniform_draws = torch.from_numpy(uniforms(tile.key[rows], tile.count[rows]))
        return logits, *sample_tokens(logits, params, uniform_draws.to(device))

    def _prefixes(self, prompts: Sequence[Prompt], *, most: int | None = None) -> Iterator[tuple[list[int], Prefix]]:
        """Yield keys and values of all prompt tokens but the last (see `Prefill`); at most `most` prompts in a
        pass, filled with blanks."""
        by_width: dict[int, list[int]] = {}
        for index, prompt in enumerate(prompts):
            if len(prompt.tokens) > 1:
                by_width.setdefault(padded(len(prompt.tokens) - 1), []).append(index)
        for width, members in by_width.items():
            at_once = min(max(1, PREFILL_TOKENS // width), most or len(members))
            for part in (members[begin : begin + at_once] for begin in range(0, len(members), at_once)):
                beginnings = [prompts[index].tokens[:-1] for index in part]
                yield part, self._prefix(beginnings, width, num_rows=at_once if most else len(part))

    def _prefix(
        self, beginnings: Sequence[Sequence[int] | Int64[np.ndarray, "_"]], width: int, *, num_rows: int
    ) -> Prefix:
        """Return keys and values of prefixes, padded with rows below and, where no token attends, on the right."""
        began_s = time.monotonic()
        tokens = np.zeros((num_rows, width), np.int64)
        for row, beginning in enumerate(beginnings):
            tokens[row, : len(beginning)] = beginning
        last_position = longest_sequence(self._network.config) - 1
        cache = DynamicCache()
        self._network.base_model(
            input_ids=torch.from_numpy(tokens).to(self._device),
            position_ids=torch.arange(width, device=self._device).clamp(max=last_position)[None],
            past_key_values=cache,
            use_cache=True,
        )
        self.cost.prefill_s += time.monotonic() - began_s
        return [(layer.keys, layer.values) for layer in cache.layers]


def _num_positions(prompts: Sequence[Prompt], params: SamplingParams) -> int:
    """Return the positions of the longest possible sequence."""
    return max(len(prompt.tokens) for prompt in prompts) - 1 + params.max_tokens


@contextmanager
def _in_evaluation(network: Any) -> Iterator[None]:
    """Disable dropout and activation checkpointing, which would disable caches."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


def _masks(
    network: Any, positions: Int64[Tensor, "row"], width: int
) -> Float[Tensor, "row 1 1 width"] | dict[str, Float[Tensor, "row 1 1 width"]]:
    """Return attention masks: 0 for a row's own tokens, minus infinity for the rest of its slot.

    Layers with a sliding window have a narrower mask; if a model has both kinds, each has its own.
    """
    columns = torch.arange(width, device=positions.device)
    seen = columns <= positions[:, None]
    dtype, window = network.dtype, getattr(network.config, "sliding_window", None)
    whole = torch.zeros(seen.shape, dtype=dtype, device=positions.device).masked_fill_(~seen, -torch.inf)
    if window is None or width <= window:
        return whole[:, None, None]
    near = whole.masked_fill(columns <= positions[:, None] - window, -torch.inf)[:, None, None]
    kinds = set(getattr(network.config, "layer_types", None) or ["sliding_attention"])
    if kinds == {"full_attention"}:
        return whole[:, None, None]
    return {"full_attention": whole[:, None, None], "sliding_attention": near} if len(kinds) > 1 else near


def _are_same(some: Sequence[Rollout], others: Sequence[Rollout]) -> bool:
    return all(
        np.array_equal(one.tokens, other.tokens) and np.array_equal(one.logprobs, other.logprobs)
        for one, other in zip(some, others, strict=True)
    )
