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
    """One Parquet file as it was when indexed."""

    path: str
    """Relative to the dataset's `source_url`, with forward slashes."""
    num_bytes: PositiveInt
    num_rows: NonNegativeInt
    num_row_groups: NonNegativeInt
    sha256: str
    """SHA-256 of the whole file."""


class LengthProfile(Record):
    """How long the sequences are, in tokens."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: int
    histogram_edges: tuple[int, ...]
    """Bin k holds the lengths in [edges[k], edges[k + 1])."""
    histogram_rows: tuple[int, ...]


class ColumnProfile(Record):
    """What a metadata or split column holds."""

    name: str
    type: str
    missing_rate: float
    """Share of rows whose value is null, or not a number (NaN)."""
    top_values: tuple[tuple[str, int], ...] = ()
    """Most frequent values with their row counts, at most 20; empty for numbers and times."""
    minimum: str | None = None
    maximum: str | None = None
    mean: float | None = None


class BuildSummary(Record):
    """What became of the rows that a dataset was built from."""

    num_read: NonNegativeInt
    """Rows in the sources."""
    num_empty: NonNegativeInt = 0
    """Left out: they have no text."""
    first_empty: str = ""
    """Where the first of them is."""
    num_unlabelled: NonNegativeInt = 0
    """Left out: they have no label."""
    first_unlabelled: str = ""
    """Where the first of them is."""
    num_doubled: NonNegativeInt = 0
    """Rows whose text an earlier row has."""
    num_conflicting: NonNegativeInt = 0
    """Rows of texts that have several labels."""
    num_shared: NonNegativeInt = 0
    """Rows kept whose text another group has, too: a split by group lets them leak from one part to another."""
    num_dropped: NonNegativeInt = 0
    """Left out because `drop` asks for it."""
    drop: tuple[str, ...] = ()
    """What was to be left out (`--drop`)."""
    num_cut: NonNegativeInt = 0
    """Rows that were longer than `max_tokens`."""
    num_cut_tokens: NonNegativeInt = 0
    """What they lost."""
    num_split: NonNegativeInt = 0
    """Texts longer than `max_tokens`, which became several rows."""
    num_long: NonNegativeInt = 0
    """Left out: longer than `max_tokens`, and not to be cut."""
    first_long: str = ""
    """Where the first of them is."""
    num_unusable: NonNegativeInt = 0
    """Left out because `drop` asks for it: they cannot be read, or nothing learned from them."""
    first_unusable: str = ""
    """What is wrong with the first of them."""
    num_reasoning_dropped: NonNegativeInt = 0
    """Messages' reasoning that the chat template left out of turns that are not trained."""
    num_altered: NonNegativeInt = 0
    """Rows whose tokens do not say what their text does: some characters are unknown, or were normalized."""
    first_altered: str = ""
    """Where the first of them is, and what it became."""
    unread_fields: tuple[str, ...] = ()
    """Fields of the rows that are no part of the dataset."""
    num_numbers: NonNegativeInt = 0
    """Labelled rows whose text is a number and nothing else."""
    group: str = ""
    """The field that the column `shard_id` holds; empty if that is a digest of the text."""
    text: str = ""
    """The field of the texts; empty if rows have no such field."""


class ReferenceScores(Record):
    """Whose log-probabilities stand beside pairs, and whose rows these are."""

    source: str
    """Name of the dataset that the rows were copied from."""
    source_fingerprint: str
    reference: str
    """The folder or the run's commit that was asked, as it was named."""
    weights_digest: str
    """The reference's weights as they were used, in float32: what a commit of them would have."""


class HeldOutOf(Record):
    """Whose held-out rows these are, and by which split."""

    name: str
    """The name of the dataset that they were copied from, their parent."""
    fingerprint: str
    split: dict[str, Any]
    """`data.split` of the recipes that evaluate on them."""
    split_sha256: str
    """SHA-256 of the parent's fingerprint and the split."""


class BoundaryTokens(Record):
    """The tokens that begin and end the texts of a language model's dataset, as its rows have them."""

    begin_ids: tuple[NonNegativeInt, ...] = ()
    """Special tokens that every text begins with, whoever wrote them: the tokenizer or the chat template. The
    header of a first message is none of them: other messages have it, too."""
    end_ids: tuple[NonNegativeInt, ...] = ()
    """Special tokens that end what is trained, the most frequent first: a model stops after any of them. Empty
    where what is trained ends in ordinary text; of prompts, what would end their completions."""
    num_ends: NonNegativeInt = 0
    """Trained turns, completions or texts."""
    num_trained_ends: NonNegativeInt = 0
    """Those of `num_ends` whose end token is trained: a model learns to stop from them only."""


class DatasetManifest(Record):
    """A dataset: the bytes, by digest, and what is in them."""

    kind: ClassVar[str] = "dataset"

    name: str
    source_url: str
    """Where the shards lie: `s3://bucket/prefix`, a path, or (inside the manifest's folder) a relative path."""
    source_beside: str = ""
    """The same as a path from the manifest's folder, for both may move together; empty if they have nothing in
    common but the root."""
    fingerprint: str
    """SHA-256 over every shard's path, digest and row groups, and the schema. Names the dataset everywhere."""
    row_groups_sha256: str
    """SHA-256 of `row_groups.parquet`."""
    footers_sha256: str
    """SHA-256 of `footers.arrow`: the shards' Parquet footers, so that reading asks no shard for one."""
    columns: dict[str, str]
    """Column name -> Arrow type, in file order."""
    shards: tuple[Shard, ...]
    num_rows: NonNegativeInt
    num_row_groups: NonNegativeInt
    num_tokens: NonNegativeInt
    max_token_id: NonNegativeInt
    """A model's vocabulary must be larger."""
    lengths: LengthProfile
    label_counts: dict[str, int]
    """Label -> rows: classes by their names, whole numbers as text. Empty where the dataset has no `label`
    column, or one of too many values to be classes."""
    column_profiles: tuple[ColumnProfile, ...]
    tokenizer_sha256: str | None = None
    """SHA-256 of the tokenizer's `tokenizer.json`, where the dataset was built by us."""
    build: BuildSummary | None = None
    """What became of the rows that it was built from; None where shards were adopted."""
    format: Format
    """What the rows are trained for, as their columns say."""
    num_trained_tokens: NonNegativeInt | None = None
    """Those of `num_tokens` that a language model learns to write: in spans, or behind the prompt of a pair.
    None of labelled rows and prompts."""
    tokenizer_config_sha256: str | None = None
    """SHA-256 of the `tokenizer_config.json` that was built with: the special tokens."""
    chat_template_sha256: str | None = None
    """SHA-256 of the `chat_template.jinja` that rendered the messages."""
    scored: ReferenceScores | None = None
    """Who said what the columns `ref_chosen_logps` and `ref_rejected_logps` hold; None where assay does not
    know."""
    held_out_of: HeldOutOf | None = None
    """The dataset whose held-out rows these are; None of all others."""
    item_fields: dict[str, int] | None = None
    """Field of the items that graders read of prompts -> rows in which it is not null. None of other rows, and
    if there are more than a thousand fields."""
    boundaries: BoundaryTokens | None = None
    """Where texts begin and end. None of labelled rows and adopted shards."""

    @property
    def text_field(self) -> str:
        """The field of the texts that it was built of; empty if it was not built, or rows have no such field."""
        return self.build.text if self.build is not None else ""
