"""What happens to a fine-tuning job, as entries of its log: asked for over the API, done by a worker.

    created  taken  validated  launching  launched  checkpoint ...  left  (resume)  launching  ...  succeeded
             |------------------------ a worker, under its lease -----------------------------------------|
             pause, resume, cancel: anybody who may, at any time;  waits: any worker;  charged: at the end of
             each launch;  budget: where that, and what is held now, is as much as was allowed

Every worker's entry has the number of its lease: the newest `taken` says which number counts.
"""

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from assay.records.log_entry import Claimed, classes_by_type
from assay.records.record import Record

WaitCode = Literal["no_worker", "files", "starting", "turn", "slots_taken", "project_limit", "scheduler"]
"""The one thing that a job waits for: a worker; its files' validation; its launch, which is at hand; others of
the queue; a place at a worker; its project's limit; the cluster's scheduler."""


class JobCreated(Record):
    """A client created the job."""

    type: Literal["created"] = "created"
    job_id: str
    project: str
    at_s: float
    """Seconds since the Unix epoch, as in all entries."""
    model: str
    """The base model's name."""
    base: dict[str, Any]
    """Contents of the base model's file at creation; later edits do not affect the job."""
    method: str
    """The API's name of the method: `classification`, `supervised`, ..."""
    hyperparameters: dict[str, Any]
    """As requested; `auto` takes the value from the base model's file."""
    grader: dict[str, Any] | None = None
    """Grader that rewards completions, for RL methods."""
    training_file: str
    validation_file: str | None = None
    seed: NonNegativeInt
    suffix: str | None = None
    metadata: dict[str, str] | None = None
    request_sha256: str
    """Digest of the request, to recognize a retry."""
    budget_device_hours: PositiveFloat | None = None
    """Budget of device time; None is unlimited."""


class JobAcquired(Record):
    """A worker acquired the job; earlier holders can no longer append."""

    type: Literal["taken"] = "taken"
    at_s: float
    lease: PositiveInt
    """Lease number; increases with every holder."""
    worker: str
    """Host and process, for display."""


class JobValidated(Record):
    """The dataset is built and the run created."""

    type: Literal["validated"] = "validated"
    at_s: float
    lease: PositiveInt
    run_id: str
    num_rows: PositiveInt
    """Rows in both files."""
    dataset_fingerprint: str
    num_steps: PositiveInt
    hyperparameters: dict[str, Any]
    """All hyperparameters, with resolved values."""


class JobFailed(Record):
    """The job failed; it does not continue by itself."""

    type: Literal["failed"] = "failed"
    at_s: float
    lease: PositiveInt
    code: str
    message: str
    param: str | None = None


class LaunchPlanned(Record):
    """A worker is about to launch the run. Its successor looks for that launch before starting another."""

    type: Literal["launching"] = "launching"
    at_s: float
    lease: PositiveInt
    number: PositiveInt
    """Lowest launch number of the run that may be this launch."""


class LaunchStarted(Record):
    """The launch was started or found."""

    type: Literal["launched"] = "launched"
    at_s: float
    lease: PositiveInt
    number: PositiveInt
    where: str
    """`process 345 on node7`."""
    step: NonNegativeInt
    """Step it continues from."""


class JobWaits(Record):
    """The job waits for something else than before."""

    type: Literal["waits"] = "waits"
    at_s: float
    code: WaitCode
    message: str
    """Text for the job's owner."""


class RunBegan(Record):
    """The scheduler started the queued launch."""

    type: Literal["began"] = "began"
    at_s: float
    lease: PositiveInt


class MetricPoint(Record):
    """Metrics of one step."""

    step: PositiveInt
    at_s: float
    values: dict[str, float]


class JobCheckpoint(Record):
    """A commit of the run, with the metrics of the steps up to it, which cannot be rolled back any more."""

    type: Literal["checkpoint"] = "checkpoint"
    at_s: float
    lease: PositiveInt
    step: PositiveInt
    weights_digest: str
    retained_steps: tuple[PositiveInt, ...]
    """Steps of all current commits; others were retired and are no longer usable."""
    points: tuple[MetricPoint, ...]
    """Metrics since the previous checkpoint, subsampled in long runs."""


class RunLeft(Record):
    """The run stopped early after a commit: on request, by preemption, or because its driver died."""

    type: Literal["left"] = "left"
    at_s: float
    lease: PositiveInt
    step: NonNegativeInt
    """Step of its last commit; 0 if there is none."""


class PauseRequested(Record):
    """A client asked to commit and pause."""

    type: Literal["pause"] = "pause"
    at_s: float


class ResumeRequested(Record):
    """A client asked to continue from the last commit."""

    type: Literal["resume"] = "resume"
    at_s: float
    budget_device_hours: PositiveFloat | None = None
    """New total budget of device time; None keeps the old one."""


class BudgetSpent(Record):
    """A worker found a budget exhausted; the run commits and pauses."""

    type: Literal["budget"] = "budget"
    at_s: float
    lease: PositiveInt
    of: Literal["job", "project"]
    device_s: NonNegativeFloat
    """Device time of the job, or of all jobs of its project in this month."""
    limit_device_s: float


class JobCharged(Record):
    """Device time of an attempt that ended; attempt 0 is evaluation outside training.

    A later entry of the same attempt replaces an earlier one.
    """

    type: Literal["charged"] = "charged"
    at_s: float
    lease: PositiveInt
    attempt: NonNegativeInt
    began_s: float
    ended_s: float
    device_s: NonNegativeFloat


class CancelRequested(Record):
    """A client asked to commit and stop permanently."""

    type: Literal["cancel"] = "cancel"
    at_s: float


class JobSucceeded(Record):
    """The run reached its last step, and its audit passed."""

    type: Literal["succeeded"] = "succeeded"
    at_s: float
    lease: PositiveInt
    step: PositiveInt
    weights_digest: str
    result_file: str
    trained_tokens: NonNegativeInt
    measured: dict[str, float]
    """Evaluation of the final weights, by metric."""
    validation: dict[str, float] = Field(default_factory=dict)
    """The same evaluation by the API's metric names."""


class JobClaimed(Claimed):
    """A retry of the creating request returned this one."""


class ModelDeleted(Record):
    """The model and its checkpoints are no longer served. The run and its records remain."""

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

JOB_ENTRIES = classes_by_type(JobEntry)
