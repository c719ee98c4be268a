"""What happens to an eval and to its runs, as entries of their logs; and what a run finds, item by item.

    created  taken  read  graded ...  completed | failed
             |---- a worker, under its lease ----|          cancel: anybody who may, at any time

Results lie in chunks of items, each an object that is put only if absent; `graded` says that one is there.
"""

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.log_entry import Charged, Claimed, classes_by_type
from assay.records.record import Record


class EvalCreated(Record):
    """A client created the eval."""

    type: Literal["created"] = "created"
    eval_id: str
    project: str
    at_s: float
    """Seconds since the Unix epoch, as in all entries."""
    name: str
    item_schema: dict[str, Any]
    """JSON Schema of the items."""
    has_samples: bool
    """Whether criteria may refer to a model's output."""
    testing_criteria: tuple[dict[str, Any], ...]
    """As requested."""
    metadata: dict[str, str] | None = None
    request_sha256: str
    """Digest of the request, to recognize a retry."""


class EvalUpdated(Record):
    """The eval was renamed or its metadata changed."""

    type: Literal["updated"] = "updated"
    at_s: float
    name: str
    metadata: dict[str, str] | None = None


class EvalDeleted(Record):
    """The eval and its runs were deleted."""

    type: Literal["deleted"] = "deleted"
    at_s: float


class EvalClaimed(Claimed):
    """A retry of the creating request returned this one."""


EvalEntry = EvalCreated | EvalUpdated | EvalDeleted | EvalClaimed

EVAL_ENTRIES = classes_by_type(EvalEntry)


class EvalRunCreated(Record):
    """A client created an eval run."""

    type: Literal["created"] = "created"
    run_id: str
    eval_id: str
    project: str
    at_s: float
    name: str
    data_source: dict[str, Any]
    """As requested."""
    item_schema: dict[str, Any]
    """Copied from the eval."""
    testing_criteria: tuple[dict[str, Any], ...]
    """Copied from the eval."""
    model: str = ""
    """Model that generates; empty if the data contains the samples."""
    sources: dict[str, dict[str, Any]]
    """Model -> its weights as resolved at creation, for the generating model and the judges."""
    judge: str | None = None
    """Endpoint of judges that are not in `sources`."""
    metadata: dict[str, str] | None = None
    request_sha256: str
    """Digest of the request, to recognize a retry."""


class EvalRunAcquired(Record):
    """A worker acquired the run; earlier holders can no longer append."""

    type: Literal["taken"] = "taken"
    at_s: float
    lease: PositiveInt
    """Lease number; increases with every holder."""
    worker: str


class EvalRunRead(Record):
    """The items were read and validated."""

    type: Literal["read"] = "read"
    at_s: float
    lease: PositiveInt
    num_items: PositiveInt
    chunk_items: PositiveInt
    """Items in a chunk; the last chunk may have fewer."""


class CriterionCounts(Record):
    """Counts of results of one criterion."""

    passed: NonNegativeInt
    failed: NonNegativeInt
    errored: NonNegativeInt


class ModelUsage(Record):
    """Usage of one model."""

    invocations: NonNegativeInt
    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt


class EvalRunGraded(Charged):
    """The results of a chunk are stored."""

    type: Literal["graded"] = "graded"
    at_s: float
    lease: PositiveInt
    chunk: NonNegativeInt
    items: CriterionCounts
    """Over all criteria."""
    criteria: dict[str, CriterionCounts]
    """By criterion name."""
    usage: dict[str, ModelUsage]
    """By model."""


class EvalRunCompleted(Record):
    """Every item was graded or failed."""

    type: Literal["completed"] = "completed"
    at_s: float
    lease: PositiveInt


class EvalRunFailed(Record):
    """The run failed."""

    type: Literal["failed"] = "failed"
    at_s: float
    lease: PositiveInt
    code: str
    message: str


class EvalRunCancelled(Record):
    """A client cancelled the run; finished results remain."""

    type: Literal["cancel"] = "cancel"
    at_s: float


class EvalRunDeleted(Record):
    """The run was deleted with its results."""

    type: Literal["deleted"] = "deleted"
    at_s: float


class EvalRunClaimed(Claimed):
    """A retry of the creating request returned this one."""


EvalRunEntry = (
    EvalRunCreated
    | EvalRunAcquired
    | EvalRunRead
    | EvalRunGraded
    | EvalRunCompleted
    | EvalRunFailed
    | EvalRunCancelled
    | EvalRunDeleted
    | EvalRunClaimed
)

EVAL_RUN_ENTRIES = classes_by_type(EvalRunEntry)


class ItemFault(Record):
    """Why an item has no sample or no grade."""

    code: str
    """For a grade, the error name of the API."""
    message: str


class GradedSample(Record):
    """A generated sample and its request."""

    text: str | None = None
    """None if there is no output."""
    messages: tuple[dict[str, str], ...] = ()
    """The request; empty for samples from the data."""
    finish_reason: str = ""
    prompt_tokens: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0
    fault: ItemFault | None = None


class CriterionResult(Record):
    """Result of one criterion on an item."""

    name: str
    grader_type: str
    score: float | None = None
    """None if grading failed."""
    passed: bool
    label: str | None = None
    fault: ItemFault | None = None


class EvalItem(Record):
    """Results of one item."""

    index: NonNegativeInt
    """Index in the data source, from 0."""
    at_s: float
    item: dict[str, Any]
    status: Literal["pass", "fail", "error"]
    sample: GradedSample | None = None
    """None if the item has no sample."""
    results: tuple[CriterionResult, ...]


class EvalChunk(Charged):
    """Results of consecutive items."""

    items: tuple[EvalItem, ...]
    usage: dict[str, ModelUsage]
    """By model."""
