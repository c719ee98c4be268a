"""What happens to a file of the API, as entries of its log: it is made whole, and deleted. And what happens to
bytes: files hold them, and release them."""

from typing import Literal

from pydantic import NonNegativeInt

from assay.records.log_entry import Claimed, classes_by_type
from assay.records.record import Record


class FileCreated(Record):
    """Its bytes are in the store, all of them."""

    type: Literal["created"] = "created"
    file_id: str
    project: str
    at_s: float
    """Seconds since the Unix epoch."""
    filename: str
    """As it was given; never part of a key or a path."""
    purpose: str
    num_bytes: NonNegativeInt
    sha256: str
    expires_s: float | None = None
    """When it counts as deleted; None for never."""
    request_sha256: str = ""
    """Digest of the request: what tells a repeat of it; empty for a file that a worker made."""
    content: str
    """Under which name its bytes are stored."""


class FileRemoved(Record):
    """The file was deleted with its bytes."""

    type: Literal["removed"] = "removed"
    at_s: float


class FileClaimed(Claimed):
    """A retry of the creating request returned this one."""


class BytesHeld(Record):
    """A file is of these bytes."""

    type: Literal["held"] = "held"
    at_s: float
    file_id: str
    content: str
    """Under which name they lie: that of the first file since nobody held them."""


class BytesReleased(Record):
    """A file is of them no more. When it was the last, they go, and are never held again under that name."""

    type: Literal["released"] = "released"
    at_s: float
    file_id: str


FileEntry = FileCreated | FileRemoved | FileClaimed

FILE_ENTRIES = classes_by_type(FileEntry)

BytesEntry = BytesHeld | BytesReleased

BYTES_ENTRIES = classes_by_type(BytesEntry)
