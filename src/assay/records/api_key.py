"""Log entries of an API key. Only the digest of the secret is stored."""

from typing import Literal

from assay.base.names import Name
from assay.records.log_entry import classes_by_type
from assay.records.record import Record

KeyScope = Literal["read", "write", "admin", "metrics"]
"""`admin`: it opens what is said of projects and keys, and nothing of what is in a project. `metrics`: it opens
`/metrics` and nothing else."""


class KeyCreated(Record):
    """A key was created."""

    type: Literal["created"] = "created"
    key_id: str
    project: Name
    """Project in which requests with the key are resolved."""
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
    """Owner; None if the command line created it."""
    by: str
    """Creator: id of a key, or a command-line user."""
    request_sha256: str = ""
    """Digest of the request that made it: what tells a repeat of it; empty where the command line did."""


class KeyRevoked(Record):
    """From now on it opens nothing."""

    type: Literal["revoked"] = "revoked"
    at_s: float
    by: str
    """Revoker, as in `by`."""


KeyEntry = KeyCreated | KeyRevoked

KEY_ENTRIES = classes_by_type(KeyEntry)
