"""What changed between two datasets: which shards and columns, and how far the profile moved."""

from pydantic import NonNegativeFloat, NonNegativeInt

from assay.records.record import Record


class ChangedShard(Record):
    """A path that both datasets have, with other bytes."""

    path: str
    rows_before: NonNegativeInt
    rows_after: NonNegativeInt
    columns: tuple[str, ...]
    """Columns whose bytes differ; empty where the row groups hold other numbers of rows."""
    num_row_groups: NonNegativeInt
    """Row groups that differ; all of them where they hold other numbers of rows."""


class Shift(Record):
    """One figure of the profile, before and after."""

    name: str
    """`label 1`, `tokens a row: p95`, `language: missing`, `language=en`, `prompt_length: mean`."""
    before: float
    after: float
    is_share: bool
    """Whether they are shares of the rows, from 0 to 1."""


class RowDiff(Record):
    """Row by row, told apart by their tokens; where they stand does not count."""

    num_added: NonNegativeInt
    num_removed: NonNegativeInt
    num_relabelled: NonNegativeInt
    """Rows in both whose label is another."""


class DatasetDiff(Record):
    """From one dataset to another."""

    before: str
    """Fingerprint."""
    after: str
    is_equal: bool
    """The fingerprints are."""
    rows_before: NonNegativeInt
    rows_after: NonNegativeInt
    tokens_before: NonNegativeInt
    tokens_after: NonNegativeInt
    shards_added: tuple[str, ...]
    shards_removed: tuple[str, ...]
    shards_renamed: tuple[tuple[str, str], ...]
    """Old path and new path of the same bytes."""
    shards_changed: tuple[ChangedShard, ...]
    columns_added: tuple[str, ...]
    columns_removed: tuple[str, ...]
    columns_retyped: tuple[tuple[str, str, str], ...]
    """Name, type before, type after."""
    shifts: tuple[Shift, ...]
    """Figures that differ, the largest relative difference first."""
    length_distance: NonNegativeFloat
    """Share of the rows that would have to change length bin: 0 equal lengths, 1 nothing in common."""
    rows: RowDiff | None = None
    """Where it was asked for: it reads both datasets."""
