"""What happens to a key of the API, as entries of its log. The secret itself is nowhere: only its digest is."""

from typing import Literal

from assay.base.names import Name
from assay.records.record import Record

KeyScope = Literal["read", "write", "admin"]
"""`admin`: it opens what is said of projects and keys, and nothing of what is in a project."""


class KeyCreated(Record):
    """Somebody may ask in the name of a project, or say what projects there are."""

    type: Literal["created"] = "created"
    key_id: str
    project: Name
    """Everything that is asked for with it is looked up there."""
    name: str
    """For people."""
    at_s: float
    """Seconds since the Unix epoch."""
    secret_sha256: str
    hint: str
    """The last characters of the secret, by which people know it."""
    scopes: tuple[KeyScope, ...]
    expires_s: float | None = None
    """None for never."""
    service_account: str | None = None
    """In whose name it was made; None of one that the command line made."""
    by: str
    """Who made it: the id of a key, or a user of the command line."""
    request_sha256: str = ""
    """Digest of the request that made it: what tells a repeat of it; empty where the command line did."""


class KeyRevoked(Record):
    """From now on it opens nothing."""

    type: Literal["revoked"] = "revoked"
    at_s: float
    by: str
    """Who revoked it, likewise."""


KeyEntry = KeyCreated | KeyRevoked

KEY_ENTRIES: dict[str, type[KeyEntry]] = {"created": KeyCreated, "revoked": KeyRevoked}
"""By an entry's `type`."""
