"""What changed between two datasets: which shards and columns, and how far the profile moved."""

from pydantic import NonNegativeFloat, NonNegativeInt

from assay.records.record import Record


class ChangedShard(Record):
    """A path whose bytes differ."""

    path: str
    rows_before: NonNegativeInt
    rows_after: NonNegativeInt
    columns: tuple[str, ...]
    """Those that differ."""
    num_row_groups: NonNegativeInt
    """Those that differ."""


class Shift(Record):
    """A statistic before and after."""

    name: str
    """E.g. `label 1`, `prompt_length: mean`."""
    before: float
    after: float
    is_share: bool


class RowDiff(Record):
    """Rows compared by their tokens."""

    num_added: NonNegativeInt
    num_removed: NonNegativeInt
    num_relabelled: NonNegativeInt


class DatasetDiff(Record):
    """A comparison of two datasets."""

    before: str
    after: str
    is_equal: bool
    rows_before: NonNegativeInt
    rows_after: NonNegativeInt
    tokens_before: NonNegativeInt
    tokens_after: NonNegativeInt
    shards_added: tuple[str, ...]
    shards_removed: tuple[str, ...]
    shards_renamed: tuple[tuple[str, str], ...]
    """Old and new path."""
    shards_changed: tuple[ChangedShard, ...]
    columns_added: tuple[str, ...]
    columns_removed: tuple[str, ...]
    columns_retyped: tuple[tuple[str, str, str], ...]
    """Name, old and new type."""
    shifts: tuple[Shift, ...]
    """Largest relative difference first."""
    length_distance: NonNegativeFloat
    """Share of rows that change length bin."""
    rows: RowDiff | None = None
