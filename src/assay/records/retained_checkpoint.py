"""What happens to a checkpoint that others than its run may need, as entries of its log."""

from typing import Literal

from assay.records.record import Record


class CheckpointRetained(Record):
    """Somebody relies on it."""

    type: Literal["kept"] = "kept"
    holder: str
    """Who: a permission, a run of an eval, or whoever is answered by it."""
    at_s: float
    """Seconds since the Unix epoch; so for every entry."""


class CheckpointReleased(Record):
    """He does so no more."""

    type: Literal["released"] = "released"
    holder: str
    at_s: float


class CheckpointRetired(Record):
    """Nobody does, and from now on nobody can: its run is about to delete it."""

    type: Literal["retired"] = "retired"
    at_s: float


RetentionEntry = CheckpointRetained | CheckpointReleased | CheckpointRetired

RETENTION_ENTRIES: dict[str, type[RetentionEntry]] = {
    "kept": CheckpointRetained,
    "released": CheckpointReleased,
    "retired": CheckpointRetired,
}
"""By an entry's `type`."""
