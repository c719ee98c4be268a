"""Log entries of the permissions of other projects for a job's model or checkpoint."""

from typing import Literal

from assay.records.log_entry import classes_by_type
from assay.records.record import Record


class PermissionGranted(Record):
    """Another project may ask it."""

    type: Literal["granted"] = "granted"
    permission_id: str
    model: str
    """The model's or checkpoint's name."""
    project: str
    """Who may."""
    at_s: float
    """Seconds since the Unix epoch, as in all entries."""
    by: str
    """The id of the key that said so; empty where there are no keys."""


class PermissionRevoked(Record):
    """It may no longer."""

    type: Literal["revoked"] = "revoked"
    permission_id: str
    at_s: float
    by: str


PermissionEntry = PermissionGranted | PermissionRevoked

PERMISSION_ENTRIES = classes_by_type(PermissionEntry)
