"""Configuration of the row order and the batch layout."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from assay.base.config import FrozenConfig


class PaddedLayout(FrozenConfig):
    """Rows in their order, padded to the longest row of the micro-batch."""

    type: Literal["padded"] = "padded"


class BucketedLayout(FrozenConfig):
    """Rows of similar length share a micro-batch: little padding. In a step all lanes have the same length, so
    ranks stay balanced.
    """

    type: Literal["bucketed"] = "bucketed"

    jitter: float = Field(default=0.0, ge=0.0, lt=1.0)
    """For bucketing, row lengths change at random by up to this share in every epoch. 0.1 lets rows meet two to
    three times as many others, for 5 to 8% more padding.
    """


class PackedLayout(FrozenConfig):
    """Several rows in one sequence, with position ids and segment ids; almost no padding."""

    type: Literal["packed"]

    sequence_tokens: PositiveInt
    """Length of a packed sequence. No row may be longer."""


class LineLayout(FrozenConfig):
    """A micro-batch is one line of fixed length: whole rows end to end, the rest blank. Its tensors have the same
    shapes in every step, so that a GPU runs each pass as one captured graph. Recommended on a GPU.

    A line takes at most twice the rows that a lane has per step on average: also the number of row borders is fixed.
    """

    type: Literal["line"]

    tokens: PositiveInt
    """Length of a line: 8,192 to 32,768 keep a GPU busy. A row (both completions of a pair, or a prompt and its
    completion) must fit."""

    row_tokens: PositiveInt | None = None
    """Longest sequence; null: `tokens`. Attention on a GPU plans for rows of this length: with `tokens` much longer
    than the longest row, planning costs more than attention itself."""

    @model_validator(mode="after")
    def _a_row_fits(self) -> "LineLayout":
        if self.row_tokens is not None and self.row_tokens > self.tokens:
            raise ValueError(f"row_tokens={self.row_tokens} exceeds tokens={self.tokens}")
        return self

    @property
    def longest_row(self) -> int:
        return self.row_tokens or self.tokens


Layout = Annotated[PaddedLayout | BucketedLayout | PackedLayout | LineLayout, Field(discriminator="type")]


class LoaderConfig(FrozenConfig):
    """The order of the rows, and how a step's rows are laid out. Every key but `prefetch_steps` and
    `threads` changes the weights.
    """

    also_called: ClassVar = {
        "batch_size": "global_batch_size",
        "train_batch_size": "global_batch_size",
        "bs": "global_batch_size",
        "micro_batch_size": "max_micro_batch_tokens",
        "gradient_accumulation_steps": "max_micro_batch_tokens",
        "shuffle_buffer": "window_rows",
        "shuffle_seed": "seed",
        "num_workers": "threads",
        "prefetch": "prefetch_steps",
    }

    seed: NonNegativeInt = 0
    """Seed of the row order."""

    lanes: PositiveInt = 8
    """Streams of rows, each with one micro-batch slot in every step; a power of two. Also the largest world
    size."""

    global_batch_size: PositiveInt = 64
    """Rows per optimizer step, over all lanes; a multiple of `lanes`."""

    window_rows: PositiveInt = 4096
    """Rows of a lane that are shuffled (and bucketed or packed) together. More mix better, make the first step
    slower, and take more memory: over all ranks (shuffle_radius_windows + 2) x lanes x window_rows x mean
    tokens x 2 bytes, 4 if token ids exceed 65,535.
    """

    shuffle_radius_windows: NonNegativeInt = 3
    """Windows on each side over which the rows of a file segment are distributed. With 3, a window has rows of
    seven times as many row groups. More mix better, with the same costs.
    """

    layout: Layout = BucketedLayout()
    """How rows become micro-batches. The default is the same on every machine, because the layout decides which rows
    share a step, and so the weights; on a GPU, `train --check` advises a line and its sizes."""

    max_micro_batch_tokens: PositiveInt | None = None
    """Token budget of a micro-batch, padding included, which bounds memory. A lane's rows are cut to fit; a
    longer row goes alone. Null: one micro-batch per lane and step."""

    on_damage: Literal["fail", "quarantine"] = "fail"
    """If a row group's bytes changed since indexing: `fail` stops the run; `quarantine` skips the rows, counts
    them in every commit and lists them in the audit.
    """

    prefetch_steps: NonNegativeInt = 0
    """Steps for which a thread prepares batches ahead. Windows are decoded ahead in any case, so 0 is usually the
    cheapest.
    """

    threads: PositiveInt = 2
    """Threads that read and decode."""

    @model_validator(mode="after")
    def _lanes_divide(self) -> "LoaderConfig":
        if self.lanes & (self.lanes - 1):
            raise ValueError(f"lanes={self.lanes} is not a power of two; use {1 << self.lanes.bit_length()}")
        if self.global_batch_size % self.lanes:
            raise ValueError(
                f"global_batch_size={self.global_batch_size} is not a multiple of lanes={self.lanes}; use "
                f"{-(-self.global_batch_size // self.lanes) * self.lanes}"
            )
        return self

    @model_validator(mode="after")
    def _a_line_is_a_micro_batch(self) -> "LoaderConfig":
        if isinstance(self.layout, LineLayout) and self.max_micro_batch_tokens is not None:
            raise ValueError("max_micro_batch_tokens: loader.layout.tokens is the size of a line. Leave it out")
        return self

    def for_evaluation(self) -> "LoaderConfig":
        """Return the config for reading rows that are not trained on: no shuffle radius, which only costs memory, and
        no lines, whose tensors have no row per sequence."""
        changes: dict[str, Any] = {"shuffle_radius_windows": 0}
        if isinstance(self.layout, LineLayout):
            changes |= {"layout": BucketedLayout(), "max_micro_batch_tokens": self.layout.tokens}
        return self.model_copy(update=changes)

    @property
    def has_budget(self) -> bool:
        """True if a lane may have several micro-batches in a step."""
        return self.max_micro_batch_tokens is not None or isinstance(self.layout, LineLayout)

    @property
    def buffer_bytes_per_token(self) -> int:
        """Window buffers per lane in units of a window's tokens: the current window, the next, and pending slices."""
        return 2 * (self.shuffle_radius_windows + 2)

    @property
    def rows_per_lane(self) -> int:
        return self.global_batch_size // self.lanes

    @property
    def window_steps(self) -> int:
        return max(1, self.window_rows // self.rows_per_lane)
