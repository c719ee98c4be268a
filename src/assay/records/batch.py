"""Log entries of a batch of requests: validated as a whole, processed in chunks, written to output files.

created  taken  read  answered ...  gathering  ended        failed: the input file is invalid
         |------ a worker, under its lease --------|        cancel: any authorized client, at any time
"""

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.log_entry import Charged, Claimed, classes_by_type
from assay.records.record import Record

BatchOutcome = Literal["completed", "expired", "cancelled"]


class BatchCreated(Record):
    """A client created the batch."""

    type: Literal["created"] = "created"
    batch_id: str
    project: str
    at_s: float
    """Seconds since the Unix epoch, as in all entries."""
    endpoint: str
    input_file_id: str
    model: str | None = None
    """Model of the first request; None if it does not exist."""
    source: dict[str, Any] | None = None
    """The model's weights as resolved at creation."""
    expires_s: float
    """Deadline for processing requests."""
    output_lives_s: PositiveInt | None = None
    """Lifetime of its output files; None keeps them forever."""
    metadata: dict[str, str] | None = None
    request_sha256: str
    """Digest of the request, to recognize a retry."""


class BatchAcquired(Record):
    """A worker acquired the batch; earlier holders can no longer append."""

    type: Literal["taken"] = "taken"
    at_s: float
    lease: PositiveInt
    """Lease number; increases with every holder."""
    worker: str


class BatchFault(Record):
    """A validation error in the input file."""

    code: str
    message: str
    line: PositiveInt | None = None
    """From 1; None for the file as a whole."""
    param: str | None = None


class BatchFailed(Record):
    """Validation failed; no request is processed."""

    type: Literal["failed"] = "failed"
    at_s: float
    lease: PositiveInt
    faults: tuple[BatchFault, ...]


class BatchRead(Record):
    """Validation succeeded."""

    type: Literal["read"] = "read"
    at_s: float
    lease: PositiveInt
    num_requests: PositiveInt
    chunk_requests: PositiveInt
    """Requests in a chunk; the last chunk may have fewer."""


class BatchChunkCompleted(Charged):
    """The responses of a chunk are stored."""

    type: Literal["answered"] = "answered"
    at_s: float
    lease: PositiveInt
    chunk: NonNegativeInt
    completed: NonNegativeInt
    failed: NonNegativeInt
    input_tokens: NonNegativeInt
    output_tokens: NonNegativeInt


class BatchResponse(Record):
    """The response to one request."""

    custom_id: str
    request_id: str
    status: PositiveInt
    body: dict[str, Any]


class BatchChunk(Charged):
    """Responses to consecutive requests."""

    responses: tuple[BatchResponse, ...]
    input_tokens: NonNegativeInt
    output_tokens: NonNegativeInt


class BatchCancelRequested(Record):
    """A client cancelled the batch; finished responses are still written."""

    type: Literal["cancel"] = "cancel"
    at_s: float


class BatchGathering(Record):
    """A worker started writing the output files."""

    type: Literal["gathering"] = "gathering"
    at_s: float
    lease: PositiveInt
    outcome: BatchOutcome
    """Final status of the batch."""


class BatchEnded(Record):
    """The output files are complete."""

    type: Literal["ended"] = "ended"
    at_s: float
    lease: PositiveInt
    output_file_id: str | None = None
    """None if no request succeeded."""
    error_file_id: str | None = None
    """None if no request failed."""


class BatchClaimed(Claimed):
    """A retry of the creating request returned this batch."""


BatchEntry = (
    BatchCreated
    | BatchAcquired
    | BatchFailed
    | BatchRead
    | BatchChunkCompleted
    | BatchCancelRequested
    | BatchGathering
    | BatchEnded
    | BatchClaimed
)

BATCH_ENTRIES = classes_by_type(BatchEntry)
