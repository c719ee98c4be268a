"""What happens to a fine-tuning job, as entries of its log: asked for over the API, done by a worker.

    created  taken  validated  launching  launched  checkpoint ...  left  (resume)  launching  ...  succeeded
             |------------------------ a worker, under its lease -----------------------------------------|
             pause, resume, cancel: anybody who may, at any time;  waits: any worker;  charged: at the end of
             each launch;  budget: where that, and what is held now, is as much as was allowed

Every worker's entry has the number of its lease: the newest `taken` says which number counts.
"""

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from assay.records.claimed import Claimed
from assay.records.record import Record

WaitCode = Literal["no_worker", "files", "starting", "turn", "slots_taken", "project_limit", "scheduler"]
"""The one thing that a job waits for: a worker; its files' validation; its launch, which is at hand; others of
the queue; a place at a worker; its project's limit; the cluster's scheduler."""


class JobCreated(Record):
    """Somebody asked for a model."""

    type: Literal["created"] = "created"
    job_id: str
    project: str
    at_s: float
    """Seconds since the Unix epoch; so for every entry."""
    model: str
    """The base model's name."""
    base: dict[str, Any]
    """The base model's file as it was then: what changes in it later changes no job."""
    method: str
    """The API's word: `classification`, `supervised`, ..."""
    hyperparameters: dict[str, Any]
    """As they were asked for; `auto` stands for what the base model's file says."""
    grader: dict[str, Any] | None = None
    """What pays answers, where a method learns from that."""
    training_file: str
    validation_file: str | None = None
    seed: NonNegativeInt
    suffix: str | None = None
    metadata: dict[str, str] | None = None
    request_sha256: str
    """Digest of the request: what tells a repeat of it."""
    budget_device_hours: PositiveFloat | None = None
    """What it may hold devices for; None for as long as it takes."""


class JobAcquired(Record):
    """A worker took the job over. Whoever held it before can append nothing any more."""

    type: Literal["taken"] = "taken"
    at_s: float
    lease: PositiveInt
    """The number of its lease: greater than that of every holder before."""
    worker: str
    """For people: host and process."""


class JobValidated(Record):
    """Its files are a dataset, and its run is made."""

    type: Literal["validated"] = "validated"
    at_s: float
    lease: PositiveInt
    run_id: str
    num_rows: PositiveInt
    """In both files."""
    dataset_fingerprint: str
    num_steps: PositiveInt
    hyperparameters: dict[str, Any]
    """Every one with its number."""


class JobFailed(Record):
    """Nothing goes on by itself: why, and of which parameter."""

    type: Literal["failed"] = "failed"
    at_s: float
    lease: PositiveInt
    code: str
    message: str
    param: str | None = None


class LaunchPlanned(Record):
    """A launch of the run will be made: whoever comes next looks for it before making another."""

    type: Literal["launching"] = "launching"
    at_s: float
    lease: PositiveInt
    number: PositiveInt
    """Among the run's launches: the first that may be this one."""


class LaunchStarted(Record):
    """It was made, or found."""

    type: Literal["launched"] = "launched"
    at_s: float
    lease: PositiveInt
    number: PositiveInt
    where: str
    """`process 345 on node7`."""
    step: NonNegativeInt
    """From which it goes on."""


class JobWaits(Record):
    """What the job waits for is another thing than before."""

    type: Literal["waits"] = "waits"
    at_s: float
    code: WaitCode
    message: str
    """In words, for its owner."""


class RunBegan(Record):
    """The scheduler that holds its launch lets it run."""

    type: Literal["began"] = "began"
    at_s: float
    lease: PositiveInt


class MetricPoint(Record):
    """What one step measured."""

    step: PositiveInt
    at_s: float
    values: dict[str, float]


class JobCheckpoint(Record):
    """A commit of the run, and the steps up to it: nothing of them will be rolled back."""

    type: Literal["checkpoint"] = "checkpoint"
    at_s: float
    lease: PositiveInt
    step: PositiveInt
    weights_digest: str
    retained_steps: tuple[PositiveInt, ...]
    """The steps of all commits that the run has now: those of others were retired, and cannot be used any
    more."""
    points: tuple[MetricPoint, ...]
    """What the steps measured since the one before; of a long run, every so many-th."""


class RunLeft(Record):
    """The run stopped before its end, with a commit: it was asked to, or was preempted, or its driver died."""

    type: Literal["left"] = "left"
    at_s: float
    lease: PositiveInt
    step: NonNegativeInt
    """The step of its last commit; 0 where it made none."""


class PauseRequested(Record):
    """Commit, and stop until somebody resumes."""

    type: Literal["pause"] = "pause"
    at_s: float


class ResumeRequested(Record):
    """Go on from the last commit."""

    type: Literal["resume"] = "resume"
    at_s: float
    budget_device_hours: PositiveFloat | None = None
    """What it may hold devices for in all from now on; None for what it might before."""


class BudgetSpent(Record):
    """A worker found a budget spent: commit, and stop until somebody resumes."""

    type: Literal["budget"] = "budget"
    at_s: float
    lease: PositiveInt
    of: Literal["job", "project"]
    device_s: NonNegativeFloat
    """What was held by then, by the job; or by all jobs of its project in the month."""
    limit_device_s: float


class JobCharged(Record):
    """An attempt of its run held devices, and is over; attempt 0 is what was evaluated beside training.

    A later entry of the same attempt takes the place of an earlier one.
    """

    type: Literal["charged"] = "charged"
    at_s: float
    lease: PositiveInt
    attempt: NonNegativeInt
    began_s: float
    ended_s: float
    device_s: NonNegativeFloat


class CancelRequested(Record):
    """Commit, and stop for good."""

    type: Literal["cancel"] = "cancel"
    at_s: float


class JobSucceeded(Record):
    """The run reached its last step, and its audit proved that each row was learned exactly once."""

    type: Literal["succeeded"] = "succeeded"
    at_s: float
    lease: PositiveInt
    step: PositiveInt
    weights_digest: str
    result_file: str
    trained_tokens: NonNegativeInt
    measured: dict[str, float]
    """What the evaluation of its last weights says, by metric."""
    validation: dict[str, float] = Field(default_factory=dict)
    """Likewise, by the API's names."""


class JobClaimed(Claimed, Record):
    """A repeat of the request that created it was answered with it."""


class ModelDeleted(Record):
    """Its model and the model's checkpoints answer nobody any more. The run and what it proves stay."""

    type: Literal["model_deleted"] = "model_deleted"
    at_s: float


JobEntry = (
    JobCreated
    | JobAcquired
    | JobValidated
    | JobFailed
    | LaunchPlanned
    | LaunchStarted
    | JobWaits
    | RunBegan
    | JobCheckpoint
    | RunLeft
    | PauseRequested
    | ResumeRequested
    | BudgetSpent
    | JobCharged
    | CancelRequested
    | JobSucceeded
    | JobClaimed
    | ModelDeleted
)

JOB_ENTRIES: dict[str, type[JobEntry]] = {
    "created": JobCreated,
    "taken": JobAcquired,
    "validated": JobValidated,
    "failed": JobFailed,
    "launching": LaunchPlanned,
    "launched": LaunchStarted,
    "waits": JobWaits,
    "began": RunBegan,
    "checkpoint": JobCheckpoint,
    "left": RunLeft,
    "pause": PauseRequested,
    "resume": ResumeRequested,
    "budget": BudgetSpent,
    "charged": JobCharged,
    "cancel": CancelRequested,
    "succeeded": JobSucceeded,
    "claimed": JobClaimed,
    "model_deleted": ModelDeleted,
}
"""By an entry's `type`."""
