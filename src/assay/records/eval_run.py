"""What happens to an eval and to its runs, as entries of their logs; and what a run finds, item by item.

    created  taken  read  graded ...  completed | failed
             |---- a worker, under its lease ----|          cancel: anybody who may, at any time

Results lie in chunks of items, each an object that is put only if absent; `graded` says that one is there.
"""

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.charge import Charged
from assay.records.claimed import Claimed
from assay.records.record import Record


class EvalCreated(Record):
    """Somebody wants models judged by these criteria."""

    type: Literal["created"] = "created"
    eval_id: str
    project: str
    at_s: float
    """Seconds since the Unix epoch; so for every entry."""
    name: str
    item_schema: dict[str, Any]
    """JSON Schema of its items."""
    has_samples: bool
    """Whether criteria may read what a model said."""
    testing_criteria: tuple[dict[str, Any], ...]
    """As they were asked for."""
    metadata: dict[str, str] | None = None
    request_sha256: str
    """Digest of the request: what tells a repeat of it."""


class EvalUpdated(Record):
    """It is called so from now on."""

    type: Literal["updated"] = "updated"
    at_s: float
    name: str
    metadata: dict[str, str] | None = None


class EvalDeleted(Record):
    """Nobody finds it, or its runs, any more."""

    type: Literal["deleted"] = "deleted"
    at_s: float


class EvalClaimed(Claimed, Record):
    """A repeat of the request that created it was answered with it."""


EvalEntry = EvalCreated | EvalUpdated | EvalDeleted | EvalClaimed

EVAL_ENTRIES: dict[str, type[EvalEntry]] = {
    "created": EvalCreated,
    "updated": EvalUpdated,
    "deleted": EvalDeleted,
    "claimed": EvalClaimed,
}
"""By an entry's `type`."""


class EvalRunCreated(Record):
    """Somebody wants items graded, and perhaps answered first."""

    type: Literal["created"] = "created"
    run_id: str
    eval_id: str
    project: str
    at_s: float
    name: str
    data_source: dict[str, Any]
    """As it was asked for."""
    item_schema: dict[str, Any]
    """The eval's."""
    testing_criteria: tuple[dict[str, Any], ...]
    """The eval's."""
    model: str = ""
    """Which answers; empty where samples are given."""
    sources: dict[str, dict[str, Any]]
    """Model -> its weights, as they were meant then: of what answers, and of what judges."""
    judge: str | None = None
    """The endpoint of judges that are none of these."""
    metadata: dict[str, str] | None = None
    request_sha256: str
    """Digest of the request: what tells a repeat of it."""


class EvalRunAcquired(Record):
    """A worker took it over. Whoever held it before can append nothing any more."""

    type: Literal["taken"] = "taken"
    at_s: float
    lease: PositiveInt
    """The number of its lease: greater than that of every holder before."""
    worker: str


class EvalRunRead(Record):
    """Its items are there, and can be graded."""

    type: Literal["read"] = "read"
    at_s: float
    lease: PositiveInt
    num_items: PositiveInt
    chunk_items: PositiveInt
    """Items of a chunk; the last has fewer."""


class CriterionCounts(Record):
    """How items fared by one criterion."""

    passed: NonNegativeInt
    failed: NonNegativeInt
    errored: NonNegativeInt


class ModelUsage(Record):
    """What was asked of one model."""

    invocations: NonNegativeInt
    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt


class EvalRunGraded(Charged):
    """A chunk's results are there."""

    type: Literal["graded"] = "graded"
    at_s: float
    lease: PositiveInt
    chunk: NonNegativeInt
    items: CriterionCounts
    """By all criteria together."""
    criteria: dict[str, CriterionCounts]
    """By name."""
    usage: dict[str, ModelUsage]
    """By model."""


class EvalRunCompleted(Record):
    """All items are graded, or failed one by one."""

    type: Literal["completed"] = "completed"
    at_s: float
    lease: PositiveInt


class EvalRunFailed(Record):
    """Nothing more comes of it."""

    type: Literal["failed"] = "failed"
    at_s: float
    lease: PositiveInt
    code: str
    message: str


class EvalRunCancelled(Record):
    """Somebody wants no more of it; what was graded stays."""

    type: Literal["cancel"] = "cancel"
    at_s: float


class EvalRunDeleted(Record):
    """Nobody finds it any more; its results go."""

    type: Literal["deleted"] = "deleted"
    at_s: float


class EvalRunClaimed(Claimed, Record):
    """A repeat of the request that created it was answered with it."""


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

EVAL_RUN_ENTRIES: dict[str, type[EvalRunEntry]] = {
    "created": EvalRunCreated,
    "taken": EvalRunAcquired,
    "read": EvalRunRead,
    "graded": EvalRunGraded,
    "completed": EvalRunCompleted,
    "failed": EvalRunFailed,
    "cancel": EvalRunCancelled,
    "deleted": EvalRunDeleted,
    "claimed": EvalRunClaimed,
}
"""By an entry's `type`."""


class ItemFault(Record):
    """Why there is no answer, or no grade."""

    code: str
    """For a grade the API's word."""
    message: str


class GradedSample(Record):
    """What was said of an item, and how it was asked for."""

    text: str | None = None
    """None: nothing was said."""
    messages: tuple[dict[str, str], ...] = ()
    """What was asked; nothing of a sample that was given."""
    finish_reason: str = ""
    prompt_tokens: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0
    fault: ItemFault | None = None


class CriterionResult(Record):
    """One criterion's word on an item."""

    name: str
    grader_type: str
    score: float | None = None
    """None where it failed."""
    passed: bool
    label: str | None = None
    fault: ItemFault | None = None


class EvalItem(Record):
    """One item of a run, with all that was found."""

    index: NonNegativeInt
    """In the data source, from 0."""
    at_s: float
    item: dict[str, Any]
    status: Literal["pass", "fail", "error"]
    sample: GradedSample | None = None
    """None of an item without one."""
    results: tuple[CriterionResult, ...]


class EvalChunk(Charged):
    """Results of items that follow one another."""

    items: tuple[EvalItem, ...]
    usage: dict[str, ModelUsage]
    """By model."""
