"""What happens to a batch of requests, as entries of its log: checked whole, answered in chunks, gathered.

created  taken  read  answered ...  gathering  ended        failed: its file cannot be a batch's
         |------ a worker, under its lease --------|        cancel: anybody who may, at any time
"""

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.charge import Charged
from assay.records.claimed import Claimed
from assay.records.record import Record

BatchOutcome = Literal["completed", "expired", "cancelled"]


class BatchCreated(Record):
    """Somebody wants the requests of a file answered."""

    type: Literal["created"] = "created"
    batch_id: str
    project: str
    at_s: float
    """Seconds since the Unix epoch; so for every entry."""
    endpoint: str
    input_file_id: str
    model: str | None = None
    """What the first request asks; None where it asks none that there is."""
    source: dict[str, Any] | None = None
    """The model's weights, as they were meant then."""
    expires_s: float
    """When requests are answered no more."""
    output_lives_s: PositiveInt | None = None
    """How long its output files will be there; None for ever."""
    metadata: dict[str, str] | None = None
    request_sha256: str
    """Digest of the request: what tells a repeat of it."""


class BatchAcquired(Record):
    """A worker took it over. Whoever held it before can append nothing any more."""

    type: Literal["taken"] = "taken"
    at_s: float
    lease: PositiveInt
    """The number of its lease: greater than that of every holder before."""
    worker: str


class BatchFault(Record):
    """What is wrong with one line of its file."""

    code: str
    message: str
    line: PositiveInt | None = None
    """From 1; None of the file as a whole."""
    param: str | None = None


class BatchFailed(Record):
    """No request of it is answered."""

    type: Literal["failed"] = "failed"
    at_s: float
    lease: PositiveInt
    faults: tuple[BatchFault, ...]


class BatchRead(Record):
    """Every request can be asked."""

    type: Literal["read"] = "read"
    at_s: float
    lease: PositiveInt
    num_requests: PositiveInt
    chunk_requests: PositiveInt
    """Requests of a chunk; the last has fewer."""


class BatchChunkCompleted(Charged):
    """A chunk's answers are there."""

    type: Literal["answered"] = "answered"
    at_s: float
    lease: PositiveInt
    chunk: NonNegativeInt
    completed: NonNegativeInt
    failed: NonNegativeInt
    input_tokens: NonNegativeInt
    output_tokens: NonNegativeInt


class BatchResponse(Record):
    """What one request was answered with."""

    custom_id: str
    request_id: str
    status: PositiveInt
    body: dict[str, Any]


class BatchChunk(Charged):
    """Answers to requests that follow one another."""

    responses: tuple[BatchResponse, ...]
    input_tokens: NonNegativeInt
    output_tokens: NonNegativeInt


class BatchCancelRequested(Record):
    """Somebody wants no more of it; what was answered is gathered."""

    type: Literal["cancel"] = "cancel"
    at_s: float


class BatchGathering(Record):
    """Its answers are written to files."""

    type: Literal["gathering"] = "gathering"
    at_s: float
    lease: PositiveInt
    outcome: BatchOutcome
    """What it ends as."""


class BatchEnded(Record):
    """They are."""

    type: Literal["ended"] = "ended"
    at_s: float
    lease: PositiveInt
    output_file_id: str | None = None
    """None where no request was answered."""
    error_file_id: str | None = None
    """None where none failed."""


class BatchClaimed(Claimed, Record):
    """A repeat of the request that created it was answered with it."""


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

BATCH_ENTRIES: dict[str, type[BatchEntry]] = {
    "created": BatchCreated,
    "taken": BatchAcquired,
    "failed": BatchFailed,
    "read": BatchRead,
    "answered": BatchChunkCompleted,
    "cancel": BatchCancelRequested,
    "gathering": BatchGathering,
    "ended": BatchEnded,
    "claimed": BatchClaimed,
}
"""By an entry's `type`."""
