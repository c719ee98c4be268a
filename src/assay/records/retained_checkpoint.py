"""Log entries of a checkpoint that something besides its run retains."""

from typing import Literal

from assay.records.log_entry import classes_by_type
from assay.records.record import Record


class CheckpointRetained(Record):
    """A holder needs the checkpoint."""

    type: Literal["kept"] = "kept"
    holder: str
    """E.g. a permission, an eval run or a serving session."""
    at_s: float
    """Seconds since the Unix epoch, as in all entries."""


class CheckpointReleased(Record):
    """A holder no longer needs the checkpoint."""

    type: Literal["released"] = "released"
    holder: str
    at_s: float


class CheckpointRetired(Record):
    """The run is about to delete the checkpoint, so it can no longer be retained."""

    type: Literal["retired"] = "retired"
    at_s: float


RetentionEntry = CheckpointRetained | CheckpointReleased | CheckpointRetired

RETENTION_ENTRIES = classes_by_type(RetentionEntry)
