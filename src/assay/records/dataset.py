"""What a dataset is: its shards, their bytes, and a profile that a person can read.

A manifest is a folder of three files: `manifest.json` (this record), `row_groups.parquet` (one line per row
group, see `assay.data.dataset.row_groups`) and `footers.arrow`. The shards stay where they are.
"""

from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record

Format = Literal["labelled", "text", "chat", "pairs", "prompts"]
"""What rows are trained for: a label, every token, some tokens, one sequence before another, an answer."""


class Shard(Record):
    """A Parquet file."""

    path: str
    """Relative to `source_url`."""
    num_bytes: PositiveInt
    num_rows: NonNegativeInt
    num_row_groups: NonNegativeInt
    sha256: str


class LengthProfile(Record):
    """Row lengths in tokens."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: int
    histogram_edges: tuple[int, ...]
    """Bin k is [edges[k], edges[k + 1])."""
    histogram_rows: tuple[int, ...]


class ColumnProfile(Record):
    """A metadata or split column."""

    name: str
    type: str
    missing_rate: float
    """Null or NaN."""
    top_values: tuple[tuple[str, int], ...] = ()
    """Up to 20, with row counts."""
    minimum: str | None = None
    maximum: str | None = None
    mean: float | None = None


class BuildSummary(Record):
    """What a build did with its source rows."""

    num_read: NonNegativeInt
    num_empty: NonNegativeInt = 0
    first_empty: str = ""
    num_unlabelled: NonNegativeInt = 0
    first_unlabelled: str = ""
    num_doubled: NonNegativeInt = 0
    """Rows with the text of an earlier row."""
    num_conflicting: NonNegativeInt = 0
    """Rows whose text has several labels."""
    num_shared: NonNegativeInt = 0
    """Rows whose text is in several groups; a split by group leaks them."""
    num_dropped: NonNegativeInt = 0
    """By `drop`."""
    drop: tuple[str, ...] = ()
    num_cut: NonNegativeInt = 0
    """To `max_tokens`."""
    num_cut_tokens: NonNegativeInt = 0
    num_split: NonNegativeInt = 0
    """Texts split into several rows."""
    num_long: NonNegativeInt = 0
    """Dropped: longer than `max_tokens`."""
    first_long: str = ""
    num_unusable: NonNegativeInt = 0
    """Dropped: unreadable or without trained tokens."""
    first_unusable: str = ""
    num_reasoning_dropped: NonNegativeInt = 0
    """Messages that the template omits."""
    num_altered: NonNegativeInt = 0
    """Rows whose tokens do not decode to their text."""
    first_altered: str = ""
    unread_fields: tuple[str, ...] = ()
    """Ignored."""
    num_numbers: NonNegativeInt = 0
    """Rows whose text is a number."""
    group: str = ""
    """Field behind `shard_id`; empty: text digest."""
    text: str = ""


class ReferenceScores(Record):
    """The reference model of stored log-probabilities."""

    source: str
    """Dataset with the same rows."""
    source_fingerprint: str
    reference: str
    """Folder or run commit."""
    weights_digest: str


class HeldOutOf(Record):
    """The parent of a held-out dataset."""

    name: str
    fingerprint: str
    split: dict[str, Any]
    """For recipes that evaluate on it."""
    split_sha256: str
    """Over parent and split."""


class BoundaryTokens(Record):
    """The special tokens around texts."""

    begin_ids: tuple[NonNegativeInt, ...] = ()
    end_ids: tuple[NonNegativeInt, ...] = ()
    """Most frequent first."""
    num_ends: NonNegativeInt = 0
    """Trained turns, completions or texts."""
    num_trained_ends: NonNegativeInt = 0
    """Those whose end token is trained."""


class DatasetManifest(Record):
    """A dataset's files, digests and statistics."""

    kind: ClassVar[str] = "dataset"

    name: str
    source_url: str
    """URL or path of the shards."""
    relative_source: str = ""
    fingerprint: str
    """Over shards and schema."""
    row_groups_sha256: str
    footers_sha256: str
    columns: dict[str, str]
    """Arrow types."""
    shards: tuple[Shard, ...]
    num_rows: NonNegativeInt
    num_row_groups: NonNegativeInt
    num_tokens: NonNegativeInt
    max_token_id: NonNegativeInt
    lengths: LengthProfile
    label_counts: dict[str, int]
    column_profiles: tuple[ColumnProfile, ...]
    tokenizer_sha256: str | None = None
    build: BuildSummary | None = None
    """Null for indexed shards."""
    format: Format
    num_trained_tokens: NonNegativeInt | None = None
    """Tokens with a loss, for language models."""
    tokenizer_config_sha256: str | None = None
    chat_template_sha256: str | None = None
    scored: ReferenceScores | None = None
    held_out_of: HeldOutOf | None = None
    item_fields: dict[str, int] | None = None
    """Rows with each grader field."""
    boundaries: BoundaryTokens | None = None

    @property
    def text_field(self) -> str:
        """Return the source field of the texts; empty if the dataset was not built, or rows have no such field."""
        return self.build.text if self.build is not None else ""
