"""Log entries of a multipart upload."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.log_entry import Claimed, classes_by_type
from assay.records.record import Record


class UploadCreated(Record):
    """A client started a multipart upload."""

    type: Literal["created"] = "created"
    upload_id: str
    project: str
    at_s: float
    """Seconds since the Unix epoch, as in all entries."""
    filename: str
    """As it was given; never part of a key or a path."""
    mime_type: str
    purpose: str
    num_bytes: PositiveInt
    """That the whole file has."""
    expires_s: float
    """When parts are taken no more."""
    file_lives_s: PositiveInt | None = None
    """How long the file will be there; None for ever."""
    request_sha256: str
    """Digest of the request, to recognize a retry."""


class PartAdded(Record):
    """A part's bytes are in the store, all of them."""

    type: Literal["part"] = "part"
    at_s: float
    part_id: str
    num_bytes: NonNegativeInt
    sha256: str
    """The digest of its bytes."""


class UploadCompleted(Record):
    """Its parts are a file; they themselves go."""

    type: Literal["completed"] = "completed"
    at_s: float
    file_id: str
    part_ids: tuple[str, ...]
    """The parts of the file in their order."""


class UploadCancelled(Record):
    """Nothing comes of it; its parts go."""

    type: Literal["cancelled"] = "cancelled"
    at_s: float


class UploadClaimed(Claimed):
    """A retry of the creating request returned this one."""


UploadEntry = UploadCreated | PartAdded | UploadCompleted | UploadCancelled | UploadClaimed

UPLOAD_ENTRIES = classes_by_type(UploadEntry)
