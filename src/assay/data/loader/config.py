"""What a user chooses about the order of the rows and the shape of the batches."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from assay.base.config import FrozenConfig


class PaddedLayout(FrozenConfig):
    """Rows as they come, padded to the longest of their micro-batch."""

    type: Literal["padded"] = "padded"


class BucketedLayout(FrozenConfig):
    """Rows of similar length share a micro-batch: little padding. All lanes are at the same length in the
    same step, so ranks stay balanced."""

    type: Literal["bucketed"] = "bucketed"

    jitter: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Each row counts as up to this share longer or shorter than it is, drawn anew in every epoch, so that the
    same rows do not meet again and again. 0.1 makes two to three times as many others meet, for some 5 to 8%
    more padding."""

    added: ClassVar = frozenset({"jitter"})


class PackedLayout(FrozenConfig):
    """Several rows in one sequence, with position ids and segment borders: almost no padding."""

    type: Literal["packed"]

    sequence_tokens: PositiveInt
    """Length of a packed sequence; no row may be longer."""


Layout = Annotated[PaddedLayout | BucketedLayout | PackedLayout, Field(discriminator="type")]


class LoaderConfig(FrozenConfig):
    """The order of the rows and how a step's rows are laid out. Part of what a run computes."""

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
    """The seed of the order."""

    lanes: PositiveInt = 8
    """Streams of rows, each with a micro-batch in every step; a power of two. The largest world size: any
    number of workers up to it shares them."""

    global_batch_size: PositiveInt = 64
    """Rows behind one optimizer step, over all lanes; a multiple of `lanes`."""

    window_rows: PositiveInt = 4096
    """Rows of a lane that are shuffled (and bucketed, or packed) together. More mix better, and take more
    memory ((spread_windows + 2) x lanes x window_rows x mean tokens x 2 bytes over all ranks, 4 where a token's
    number exceeds 65,535) and a longer first step."""

    spread_windows: NonNegativeInt = 3
    """Rows that stand together in a file are dealt to so many windows before and behind theirs: with 3, a
    window has rows from seven times as many row groups. More mix better, and take more memory and a longer
    first step; nothing is read twice."""

    layout: Layout = BucketedLayout()

    max_micro_batch_tokens: PositiveInt | None = None
    """Token budget: a lane's rows are cut into micro-batches of at most so many tokens, padding counted (a
    longer row goes alone). Bounds memory; null makes one micro-batch per lane and step."""

    on_damage: Literal["fail", "quarantine"] = "fail"
    """A row group whose bytes are not those that were indexed stops the run, or is skipped, counted in
    every commit and listed by the audit."""

    prefetch_steps: NonNegativeInt = 0
    """Steps whose batches a further thread makes ready ahead; no part of the numbers. The next window is
    decoded ahead in any case, and making a batch costs microseconds a row, so 0 is the cheapest. Worth more
    only where the device would wait for the making of large batches."""

    threads: PositiveInt = 2
    """Threads that read and decode. No part of the numbers."""

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

    def unspread(self) -> "LoaderConfig":
        """For rows that are read and not learned from: how well they are mixed matters to nobody."""
        return self.model_copy(update={"spread_windows": 0})

    @property
    def kept_bytes(self) -> int:
        """For each token of a window, over its lane: the window in use, the next, and what is to be dealt."""
        return 2 * (self.spread_windows + 2)

    @property
    def rows_per_lane(self) -> int:
        """Rows of one lane in one step."""
        return self.global_batch_size // self.lanes

    @property
    def window_steps(self) -> int:
        """Steps that one window feeds."""
        return max(1, self.window_rows // self.rows_per_lane)
