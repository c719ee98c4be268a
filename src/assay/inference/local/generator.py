"""The local engine: prompts decode together, with the same bits as if each decoded alone.

    prompts --distinct ones of one padded length together--> prefixes --a free slot--> tile
    tile: one token of each slot a step --sample--> the next --end token, stop string, max_tokens--> Rollout

The network is transformers' own with a cache of pages. All state that changes from token to token is an array on the
device with an entry for each slot, and a step is a function of these arrays: on a GPU it is captured as a graph. The
host looks at the sequences every few steps, takes finished ones and admits others. A prompt is prefilled without its
last token, which is the tile's first input, so all logits come from the tile.

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
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers.cache_utils import DynamicCache

from assay.base.errors import ConfigError
from assay.base.seeds import mix64
from assay.base.shapes import Float, Int64
from assay.inference.local.captured_step import CapturedStep, bytes_of_copies, decode_weights
from assay.inference.local.decode_batch import DecodeTile, PromptQueue, groups_of
from assay.inference.local.memory import (
    GPU_SLOTS,
    GPU_TILES,
    MAX_CACHE_BYTES,
    PREFILL_TOKENS,
    SLOTS,
    SMALLEST_TILE,
    affordable_slots,
    check_room,
    padded,
    smallest_of,
    tile_bytes,
    tile_sizes,
)
from assay.inference.local.paged_cache import PagedCache, Prefix, attention_of, upload
from assay.inference.local.sampling import sample_tokens
from assay.inference.local.stop_tokens import Ends
from assay.inference.protocol import SamplingParams
from assay.inference.rollout import GenerationCancelledError, Prompt, Rollout
from assay.models.causal import longest_sequence
from assay.models.causal_config import PACKS
from assay.models.graph_capture import GraphCapture
from assay.models.kernels.triton_use import runs_triton

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
    tile_rows: int = 0
    """Rows of the largest tile."""

    def metrics(self) -> Mapping[str, float]:
        return {
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "drawn_tokens_per_s": self.num_tokens / max(self.prefill_s + self.decode_s, 1e-9),
            "slot_occupancy": self.num_tokens / max(self.num_rows, 1),
            "tile_rows": self.tile_rows,
        }


@runtime_checkable
class DrawObserver(Protocol):
    """Observes sampling without changing it."""

    def drew(
        self, prompts: Int64[np.ndarray, "row"], logits: Float[Tensor, "row entry"], tokens: Int64[Tensor, "row"]
    ) -> None:
        """Called for each step's tokens; -1 in place of a prompt marks a blank row."""
        ...

    def ended(self, prompt: int, rollout: Rollout) -> None: ...


Drawn = tuple[Float[Tensor, "row entry"], Int64[Tensor, "row"]]
"""Logits of a step, and the tokens that were sampled."""


class DecodeMode(NamedTuple):
    """How steps are run; the mode changes no rollout."""

    steps_per_look: int
    """Steps between two looks of the host at the sequences; half of it in tiles of fewer than 64 rows."""
    looks_lag: bool
    """A look shows the state of the look before, so that the host does not wait for the newest step."""
    page_size: int | None
    """Positions of a page of the cache; None: a page holds a sequence."""
    is_captured: bool
    """Steps are captured as CUDA graphs."""

    def steps(self, rows: int) -> int:
        return self.steps_per_look if rows >= 64 else max(1, self.steps_per_look // 2)


ON_CPU = DecodeMode(steps_per_look=1, looks_lag=False, page_size=None, is_captured=False)
ON_GPU = DecodeMode(steps_per_look=8, looks_lag=True, page_size=64, is_captured=True)


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
        slots: int | None = None,
        mode: DecodeMode | None = None,
    ) -> None:
        """`network` is a transformers model; `ends` are end tokens.

        `slots` sequences decode together, by default `SLOTS`, or `GPU_SLOTS` on a GPU; `mode` is by default that of the
        device. Neither changes a rollout. The tokenizer detokenizes completions if `params.stop` needs it.
        """
        self._network = network
        self._ends = frozenset(ends)
        self._tokenizer = tokenizer
        self._max_slots, self._own_mode = slots, mode
        self._ends_by_stop: dict[tuple[tuple[str, ...], frozenset[int]], Ends] = {}
        self._batch_invariance: dict[torch.dtype, BatchInvariance] = {}
        """By the type in which products are computed: autocast changes it."""
        self._capture: GraphCapture | None = None
        self.cost = Cost()
        """Cost of the last generation."""

    @property
    def batch_invariance(self) -> BatchInvariance:
        """The batches in which a rollout of this network has the same bits, as tested."""
        dtype = self._product_dtype
        if dtype not in self._batch_invariance:
            self._batch_invariance[dtype] = self._probe_invariance()
        return self._batch_invariance[dtype]

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
        *,
        ends: Collection[int] | None = None,
    ) -> list[Rollout]:
        """Return a rollout for each prompt; consecutive prompts with equal tokens are a group and prefilled once.

        `params.seed` is not used: a prompt's key determines its samples. `is_stopping` is called between tokens; if
        true, `GenerationCancelledError` is raised. `ends`: end tokens in place of the generator's own.
        """
        prompts = [Prompt(np.asarray(prompt.tokens, np.int64), prompt.key) for prompt in prompts]
        self._check_lengths(prompts, params)
        found_ends = self._ends_of(params, ends)
        decode_groups, self.cost = self._decode_groups(prompts, params), Cost()
        found: dict[int, Rollout] = {}
        for members, rows in decode_groups:
            own = [prompts[member] for member in members]
            decoded = self._decoded(own, params, found_ends, is_stopping, observer, members, rows=rows)
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

    def _ends_of(self, params: SamplingParams, own: Collection[int] | None = None) -> Ends:
        end_tokens = self._ends if own is None else frozenset(own)
        stops, key = params.stop, (params.stop, end_tokens)
        if stops and self._tokenizer is None:
            raise ConfigError("stop strings need the tokenizer that spells completions. Leave out 'stop'.")
        if key not in self._ends_by_stop:
            self._ends_by_stop[key] = Ends(end_tokens, self._vocab_size, stops=stops, tokenizer=self._tokenizer)
        return self._ends_by_stop[key]

    @property
    def _vocab_size(self) -> int:
        return int(self._network.get_output_embeddings().weight.shape[0])

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self._network.parameters()).device
        return device

    def _probe_invariance(self) -> BatchInvariance:
        """Test whether prompts have the same bits alone and in batches, of any size or of a fixed one."""
        params, sizes = SamplingParams(temperature=1.0, max_tokens=_PROBE_TOKENS), self._sizes
        lengths = self._probe_lengths
        words = mix64(np.arange(max(lengths), dtype=np.uint64)) % np.uint64(self._vocab_size)
        prompts = [Prompt(words.astype(np.int64)[-lengths[index % 4] :], index) for index in range(sizes[-1])]
        no_ends = Ends((), self._vocab_size)

        def last_two(size: int, rows: int | None) -> list[Rollout]:
            return self._decoded(prompts[-size:], params, no_ends, rows=rows)[-2:]

        def alone(rows: int | None) -> list[Rollout]:
            return [self._decoded([prompt], params, no_ends, rows=rows)[0] for prompt in prompts[-2:]]

        separately = alone(None)
        if all(_are_same(last_two(size, None), separately) for size in sizes):
            return BatchInvariance.ANY_SIZE
        fixed = [size for size in sizes if size <= self._size_for(0)]
        is_so = all(_are_same(last_two(size, size), alone(size)) for size in fixed)
        return BatchInvariance.FIXED_SIZE if is_so else BatchInvariance.GROUP_ONLY

    @property
    def _probe_lengths(self) -> list[int]:
        room = longest_sequence(self._network.config) - _PROBE_TOKENS
        return [max(1, min(length, room)) for length in _PROBE_LENGTHS]

    def _size_for(self, positions: int) -> int:
        """Return the rows of a fixed-size tile for the longest sequence of its prompts, and for the probe's."""
        if self._device.type == "cpu":
            return SMALLEST_TILE
        return self._affordable_slots(max(positions, max(self._probe_lengths) - 1 + _PROBE_TOKENS))

    @property
    def _prefilled_at_once(self) -> int:
        """Prompts of one prefill pass of fixed size."""
        return 1 if self._device.type == "cpu" else SMALLEST_TILE

    def _queue(self, prompts: Sequence[Prompt], tile_rows: int, *, is_fixed: bool) -> PromptQueue:
        """Return the queue of the prompts; a GPU prefills as many groups in advance as keep it busy."""
        at_once = tile_rows
        if self._device.type != "cpu":
            fitting = PREFILL_TOKENS // padded(max(len(prompt.tokens) for prompt in prompts))
            at_once = min(tile_rows, max(SMALLEST_TILE, fitting))
        prefill = partial(self._prefixes, most=self._prefilled_at_once) if is_fixed else self._prefixes
        return PromptQueue(prompts, prefill, at_once=at_once)

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
        tile = self._tile(prompts, params, ends, rows, is_observed=observer is not None)
        self.cost.tile_rows = max(self.cost.tile_rows, tile.rows)
        waiting = self._queue(prompts, tile.rows, is_fixed=rows is not None)
        members = np.arange(len(prompts)) if members is None else members
        rollouts: dict[int, Rollout] = {}
        with _in_evaluation(self._network), decode_weights(self._network):
            mode, step = self._mode, self._runner(tile, params, is_observed=observer is not None)
            while len(rollouts) < len(prompts):
                if is_stopping():
                    raise GenerationCancelledError
                if waiting:
                    tile.admit(waiting.next(tile.free()), prompts, waiting)
                elif rows is None:
                    tile.shrink()
                tile.blank_stale()
                for _ in range(min(tile.steps_left, 1 if observer else mode.steps(tile.rows))):
                    self.cost.num_rows += tile.rows
                    drawn = step()
                    tile.stepped()
                    if observer is not None and drawn is not None:
                        of_rows = tile.prompt[: tile.rows]
                        observer.drew(np.where(of_rows < 0, of_rows, members[of_rows]), *drawn)
                for index, rollout in tile.look().items():
                    rollouts[index] = rollout
                    if observer is not None:
                        observer.ended(int(members[index]), rollout)
        self.cost.num_tokens += sum(len(rollout.tokens) for rollout in rollouts.values())
        self.cost.decode_s += time.monotonic() - began_s - (self.cost.prefill_s - prefilled_s)
        return [rollouts[index] for index in range(len(prompts))]

    def _tile(
        self, prompts: Sequence[Prompt], params: SamplingParams, ends: Ends, rows: int | None, *, is_observed: bool
    ) -> DecodeTile:
        """Return a blank tile, of a fixed number of rows or of as many as the prompts need."""
        positions, device, sizes = _num_positions(prompts, params), self._device, self._sizes
        num_slots = rows or min(smallest_of(sizes, len(prompts)), self._affordable_slots(positions))
        self._check_memory(num_slots, positions)
        cache = PagedCache(
            num_slots,
            positions,
            device=device,
            page_size=self._mode.page_size,
            dtype=self._product_dtype if device.type == "cuda" else None,
            kernel=self._kernel(),
        )
        return DecodeTile(cache, params.max_tokens, ends, sizes, looks_lag=self._mode.looks_lag and not is_observed)

    def _runner(self, tile: DecodeTile, params: SamplingParams, *, is_observed: bool) -> Callable[[], Drawn | None]:
        """Return the step of the tile, captured if that is possible: an observer needs the result of each step."""
        step, is_whole = partial(self._step, tile, params), params.top_p == 1 and params.top_k is None
        has_kernel = self._device.type == "cuda" and tile.cache.kernel is not None
        if is_observed or not (self._mode.is_captured and has_kernel and is_whole):
            return step
        self._capture = self._capture or GraphCapture()
        captured = CapturedStep(step, self._capture)
        return lambda: captured.run(tile.rows)

    @property
    def _mode(self) -> DecodeMode:
        return self._own_mode or (ON_CPU if self._device.type == "cpu" else ON_GPU)

    @property
    def _sizes(self) -> Sequence[int]:
        """Rows that a tile may have."""
        sizes = tile_sizes(self._max_slots or SLOTS) if self._device.type == "cpu" else GPU_TILES
        most = smallest_of(sizes, self._max_slots or (SLOTS if self._device.type == "cpu" else GPU_SLOTS))
        return [size for size in sizes if size <= most]

    @property
    def _product_dtype(self) -> torch.dtype:
        """The type in which products are computed, and of keys and values on a GPU."""
        is_cast = torch.is_autocast_enabled(self._device.type)
        return torch.get_autocast_dtype(self._device.type) if is_cast else self._network.dtype

    def _kernel(self) -> Any:
        """Return `paged_attention` if it computes this model's attention on this device.

        That depends on the model and not on the prompts, so a rollout has the same bits with others as alone.
        """
        config = self._network.config
        window = getattr(config, "sliding_window", None)
        is_bounded = window is not None and longest_sequence(config) > window
        rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        reads_lengths = rope_type in ("dynamic", "longrope")
        if self._device.type != "cuda" or config.model_type not in PACKS or is_bounded or reads_lengths:
            return None
        if not runs_triton(self._device):
            return None
        from assay.models.kernels.paged_attention import paged_attention

        return paged_attention

    def _affordable_slots(self, positions: int) -> int:
        # A GPU's whole memory counts: what is free depends on the process's history, and a tile's size must not.
        is_on_cpu = self._device.type == "cpu"
        most = MAX_CACHE_BYTES if is_on_cpu else torch.cuda.get_device_properties(self._device).total_memory // 8
        return affordable_slots(self._sizes, self._bytes_of_slot(positions), most)

    def _bytes_of_slot(self, positions: int) -> int:
        config, page_size = self._network.config, self._mode.page_size
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        held = padded(positions) if page_size is None else -(-positions // page_size) * page_size
        itemsize = (self._network.dtype if self._device.type == "cpu" else self._product_dtype).itemsize
        return int(2 * config.num_hidden_layers * heads * width * held * itemsize)

    def _check_memory(self, rows: int, positions: int) -> None:
        """Raise `ConfigError` if the GPU has no room for the tile."""
        if self._device.type != "cpu":
            needed = tile_bytes(rows, self._bytes_of_slot(positions), self._vocab_size)
            check_room(bytes_of_copies(self._network) + needed, _free_bytes(self._device), rows, positions)

    def _step(self, tile: DecodeTile, params: SamplingParams) -> Drawn:
        """Sample a token of each slot of the tile; return its logits and tokens. The host waits for nothing."""
        cache, network = tile.cache, self._network
        width = 0 if cache.kernel else tile.width
        cache.write_at(tile.position, width)
        with attention_of(network, cache) as keywords:
            logits = network(
                input_ids=tile.last[:, None],
                position_ids=tile.position[:, None],
                attention_mask=None if cache.kernel else _masks(network, tile.position, width),
                past_key_values=cache,
                use_cache=True,
                **keywords,
            ).logits[:, -1]
        tokens, logprobs = sample_tokens(logits, params, tile.draws)
        tile.append(tokens, logprobs)
        return logits, tokens

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
            input_ids=upload(tokens, self._device),
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


def _free_bytes(device: torch.device) -> int:
    """Return the GPU's free memory, with what torch has cached for any use: not memory of captured graphs."""
    cached = sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == device.index and segment["segment_pool_id"] == (0, 0)
    )
    return int(torch.cuda.mem_get_info(device)[0] + cached)


def _masks(
    network: Any, positions: Int64[Tensor, "row"], width: int
) -> Float[Tensor, "row 1 1 width"] | dict[str, Float[Tensor, "row 1 1 width"]]:
    """Return attention masks: 0 for a row's own tokens, minus infinity for the rest of its slot.

    Layers with a sliding window have a narrower mask; if a model has both kinds, each has its own.
    """
    columns = torch.arange(width, device=positions.device)
    dtype, window = network.dtype, getattr(network.config, "sliding_window", None)
    whole = torch.zeros(len(positions), width, dtype=dtype, device=positions.device)
    whole.masked_fill_(columns > positions[:, None], -torch.inf)
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
