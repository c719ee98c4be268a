"""What happens to a service account, as entries of its log: a program in whose name there are keys."""

from typing import Literal

from assay.base.names import Name
from assay.records.log_entry import Claimed, classes_by_type
from assay.records.record import Record


class ServiceAccountCreated(Record):
    """Keys may be made in its name."""

    type: Literal["created"] = "created"
    account_id: str
    project: Name
    name: str
    """For people."""
    has_role: bool
    """Whether it is a member of the project, and so may have keys."""
    at_s: float
    """Seconds since the Unix epoch, as in all entries."""
    by: str
    """Actor: id of a key, or a command-line user."""
    request_sha256: str
    """Digest of the request, to recognize a retry."""


class ServiceAccountClaimed(Claimed):
    """A repeat of the request that created it was answered with it, and with a new key."""


class ServiceAccountDeleted(Record):
    """It has no keys any more, and gets none."""

    type: Literal["deleted"] = "deleted"
    at_s: float
    by: str


ServiceAccountEntry = ServiceAccountCreated | ServiceAccountClaimed | ServiceAccountDeleted

SERVICE_ACCOUNT_ENTRIES = classes_by_type(ServiceAccountEntry)
