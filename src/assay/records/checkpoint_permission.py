"""Who else may ask a model that a job made, or a checkpoint of it, as entries of the log of its name."""

from typing import Literal

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
    """Seconds since the Unix epoch; so for every entry."""
    by: str
    """The id of the key that said so; empty where there are no keys."""


class PermissionRevoked(Record):
    """It may no longer."""

    type: Literal["revoked"] = "revoked"
    permission_id: str
    at_s: float
    by: str


PermissionEntry = PermissionGranted | PermissionRevoked

PERMISSION_ENTRIES: dict[str, type[PermissionEntry]] = {
    "granted": PermissionGranted,
    "revoked": PermissionRevoked,
}
"""By an entry's `type`."""
