"""What happens to a key of the API, as entries of its log. The secret itself is nowhere: only its digest is."""

from typing import Literal

from assay.base.names import Name
from assay.records.record import Record

KeyScope = Literal["read", "write"]


class KeyCreated(Record):
    """Somebody may ask in the name of a project."""

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


class KeyRevoked(Record):
    """From now on it opens nothing."""

    type: Literal["revoked"] = "revoked"
    at_s: float


KeyEntry = KeyCreated | KeyRevoked

KEY_ENTRIES: dict[str, type[KeyEntry]] = {"created": KeyCreated, "revoked": KeyRevoked}
"""By an entry's `type`."""
