r"""A job's state and events, derived from its log.

    validating_files --> queued --> running --> succeeded
                           ^  \        |  ^
                           |   paused <-+  |  preempted: resumes by itself
                           +-----+---------+
    failed: final; cancelled: from any status but an end

The status is never stored. Events are rendered log entries, so each appears exactly once and its id follows from the
entry's number.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

from assay.records.fine_tuning_job import (
    JOB_ENTRIES,
    BudgetSpent,
    CancelRequested,
    JobAcquired,
    JobCharged,
    JobCheckpoint,
    JobClaimed,
    JobCreated,
    JobEntry,
    JobFailed,
    JobSucceeded,
    JobValidated,
    JobWaits,
    LaunchPlanned,
    LaunchStarted,
    ModelDeleted,
    PauseRequested,
    ResumeRequested,
    RunBegan,
    RunLeft,
)
from assay.serving.ids import model_name
from assay.serving.repository import ResourceState, resource_log

JobStatus = Literal["validating_files", "queued", "running", "pausing", "paused", "succeeded", "failed", "cancelled"]
DesiredState = Literal["run", "pause", "cancel"]
ENDS = ("succeeded", "failed", "cancelled")
_DESIRED_STATES: dict[str, DesiredState] = {"pause": "pause", "budget": "pause", "resume": "run", "cancel": "cancel"}
"""By type of the log entry that requests it."""


@dataclass(frozen=True)
class JobState(ResourceState[JobCreated]):
    """State of a job, folded from its log."""

    entries: tuple[JobEntry, ...] = ()
    """Checkpoint entries keep only their last metric point here; the log has all points."""
    lease: int = 0
    """Number of the newest lease; entries of older leases are rejected."""
    desired_state: DesiredState = "run"
    """The last requested state."""
    validated: JobValidated | None = None
    planned: LaunchPlanned | None = None
    """The current launch, from plan to end."""
    launched: LaunchStarted | None = None
    """The current launch, once it was started."""
    waits: JobWaits | None = None
    """Why it waits; None if it does not."""
    checkpoints: tuple[JobCheckpoint, ...] = ()
    charges: tuple[JobCharged, ...] = ()
    """Device time by attempt."""
    budget_device_hours: float | None = None
    """Limit of held device-hours."""
    budget_spent: BudgetSpent | None = None
    """The budget that stopped it, until it is resumed."""
    failed: JobFailed | None = None
    succeeded: JobSucceeded | None = None
    cancelled_s: float | None = None
    is_model_deleted: bool = False
    launches_without_progress: int = 0
    """Consecutive launches that ended, without a request, before a new checkpoint."""

    @property
    def status(self) -> JobStatus:
        """Status of the API, plus `pausing` until the run has committed and stopped."""
        if self.succeeded is not None:
            return "succeeded"
        if self.desired_state == "cancel":
            return "cancelled"
        if self.failed is not None:
            return "failed"
        if self.desired_state == "pause":
            return "pausing" if self.is_at_work else "paused"
        if self.launched is not None and not self.is_queued_outside:
            return "running"
        return "validating_files" if self.validated is None else "queued"

    @property
    def is_at_work(self) -> bool:
        """Whether a run may be running."""
        return self.planned is not None

    @property
    def is_queued_outside(self) -> bool:
        """Whether its launch is queued by a cluster's scheduler."""
        return self.is_at_work and self.waits is not None and self.waits.code == "scheduler"

    @property
    def is_waiting(self) -> bool:
        """Whether it is ready to launch."""
        return not (self.has_ended or self.is_at_work or self.validated is None) and self.desired_state == "run"

    @property
    def has_ended(self) -> bool:
        return self.status in ENDS

    @property
    def ended_s(self) -> float | None:
        last = self.succeeded or self.failed
        return self.cancelled_s if last is None else last.at_s

    @property
    def last_step(self) -> int:
        """Step of its last checkpoint; 0 before the first."""
        return self.checkpoints[-1].step if self.checkpoints else 0

    @property
    def usable_checkpoints(self) -> tuple[JobCheckpoint, ...]:
        """Checkpoints that the run has not deleted."""
        retained = self.checkpoints[-1].retained_steps if self.checkpoints else ()
        return tuple(checkpoint for checkpoint in self.checkpoints if checkpoint.step in retained)

    @property
    def has_final_cost(self) -> bool:
        """Whether no further charge can come."""
        return self.has_ended and not self.is_at_work

    @property
    def charged_s(self) -> float:
        """Charged device-seconds."""
        return sum(charge.device_s for charge in self.charges)

    @property
    def model(self) -> str:
        """Name of the model that it trains."""
        created = self.created
        return model_name(created.model, created.project, created.suffix, created.job_id)

    @classmethod
    def created_by(cls, created: JobCreated) -> Self:
        return cls(created, entries=(created,), budget_device_hours=created.budget_device_hours)

    def after(self, entry: JobEntry) -> Self:
        return replace(super().after(entry), entries=(*self.entries, entry))

    def changes(self, entry: JobEntry) -> dict[str, Any]:
        match entry:
            case JobAcquired():
                return {"lease": entry.lease}
            case JobValidated():
                return {"validated": entry}
            case LaunchPlanned():
                return {"planned": entry, "launched": None, "waits": None}
            case LaunchStarted():
                return {"launched": entry}
            case JobWaits():
                return {"waits": entry}
            case RunBegan():
                return {"waits": None}
            case JobCheckpoint():
                return {"checkpoints": (*self.checkpoints, entry), "launches_without_progress": 0}
            case RunLeft():
                without_progress = self.launches_without_progress + 1 if self.desired_state == "run" else 0
                return {"planned": None, "launched": None, "waits": None, "launches_without_progress": without_progress}
            case PauseRequested():
                return {"desired_state": "pause"}
            case ResumeRequested():
                budget = entry.budget_device_hours or self.budget_device_hours
                return {
                    "desired_state": "run",
                    "launches_without_progress": 0,
                    "budget_device_hours": budget,
                    "budget_spent": None,
                }
            case BudgetSpent():
                return {"desired_state": "pause", "budget_spent": entry}
            case JobCharged():
                others = (charge for charge in self.charges if charge.attempt != entry.attempt)
                return {"charges": tuple(sorted((*others, entry), key=lambda other: other.attempt))}
            case CancelRequested():
                return {"desired_state": "cancel", "cancelled_s": entry.at_s}
            case JobFailed():
                return {"failed": entry, "planned": None, "launched": None}
            case JobSucceeded():
                return {"succeeded": entry, "planned": None, "launched": None}
            case ModelDeleted():
                return {"is_model_deleted": True}
            case JobCreated() | JobClaimed():
                raise AssertionError(entry)


class JobEvent(NamedTuple):
    """An event of the API."""

    event_id: str
    at_s: float
    level: Literal["info", "warn", "error"]
    message: str
    data: dict[str, Any] | None = None
    """Metrics of a step; None for a message."""


def _light(entry: JobEntry) -> JobEntry:
    """Drop all but the last metric point of a checkpoint, because points are most of a long run's log."""
    if isinstance(entry, JobCheckpoint) and len(entry.points) > 1:
        return entry.model_copy(update={"points": entry.points[-1:]})
    return entry


JOB_LOG = resource_log("job's log", JOB_ENTRIES, JobState, _light)


def newest_events(
    state: JobState, whole: Callable[[int], JobEntry], cursor: tuple[int, int] | None = None
) -> Iterator[JobEvent]:
    """Yield events from newest to oldest, starting after `cursor`.

    Only requested events are rendered. `whole` reads a log entry with all its metric points.
    """
    last, end = cursor or (len(state.entries) - 1, _NO_END)
    desired_states: list[DesiredState] = ["run"]
    for entry in state.entries[: last + 1]:
        desired_states.append(_DESIRED_STATES.get(entry.type, desired_states[-1]))
    for number in range(last, -1, -1):
        entry = state.entries[number]
        entry = whole(number) if isinstance(entry, JobCheckpoint) else entry
        lines = _event_lines(state, entry, desired_states[number], desired_states[number + 1])
        for position, (at_s, level, message, data) in reversed([*enumerate(lines)]):
            if position < end:
                yield JobEvent(f"{_event_prefix(state)}{number:06x}{position:06x}", at_s, level, message, data)
        end = _NO_END


def event_cursor(state: JobState, event_id: str) -> tuple[int, int] | None:
    """Return (entry number, position within the entry) of an event id; None if the job has no such event."""
    found = re.fullmatch(rf"{_event_prefix(state)}([0-9a-f]{{6}})([0-9a-f]{{6}})", event_id)
    if found is None or (number := int(found[1], 16)) >= len(state.entries):
        return None
    return number, int(found[2], 16)


_NO_END = 1 << 24


def _event_prefix(state: JobState) -> str:
    return f"ftevent-{state.created.job_id.rpartition('-')[2]}"


_EventLine = tuple[float, Literal["info", "warn", "error"], str, dict[str, Any] | None]


def _event_lines(
    state: JobState, entry: JobEntry, before: DesiredState, desired_state: DesiredState
) -> Iterator[_EventLine]:
    at_s = entry.at_s
    match entry:
        case JobCreated():
            yield at_s, "info", f"Created fine-tuning job: {entry.job_id}", None
            yield at_s, "info", f"Validating training file: {entry.training_file}", None
        case JobValidated():
            yield at_s, "info", "Files validated, moving job to queued state", None
        case LaunchStarted(step=0):
            yield at_s, "info", "Fine-tuning job started", None
        case LaunchStarted():
            yield at_s, "info", f"Fine-tuning job resumed from step {entry.step}", None
        case JobWaits():
            yield at_s, "info", f"Waiting: {entry.message}", None
        case RunBegan():
            yield at_s, "info", "The cluster's scheduler started it", None
        case JobCheckpoint():
            total = state.validated.num_steps if state.validated else entry.step
            for point in entry.points:
                yield point.at_s, "info", _step_text(point.step, total, point.values), {
                    "step": point.step, "total_steps": total, **point.values,
                }  # fmt: skip
            yield at_s, "info", f"Checkpoint created at step {entry.step}", None
        case RunLeft():
            lines = {"pause": "Paused", "cancel": "Stopped", "run": "Interrupted"}[desired_state]
            rest = "; it resumes automatically" if desired_state == "run" else ""
            yield (at_s, "warn" if desired_state == "run" else "info", f"{lines} at step {entry.step}{rest}", None)
        case PauseRequested():
            yield at_s, "info", "Pause requested", None
        case ResumeRequested():
            if entry.budget_device_hours is not None:
                yield (at_s, "info", f"The job's budget is now {entry.budget_device_hours:.4g} device-hours", None)
            if before != "run":
                yield at_s, "info", "Resume requested, moving job to queued state", None
        case BudgetSpent():
            yield at_s, "warn", budget_words(state, entry), None
        case CancelRequested():
            yield at_s, "info", "Fine-tuning job cancelled", None
        case JobFailed():
            yield at_s, "error", entry.message, None
        case JobSucceeded():
            if (loss := entry.validation.get("full_valid_loss")) is not None:
                yield at_s, "info", f"Step {entry.step}: full validation loss={loss:.4g}", None
            yield at_s, "info", f"New fine-tuned model created: {state.model}", None
            yield at_s, "info", "The job has successfully completed", None
        case ModelDeleted():
            yield at_s, "info", f"Deleted model: {state.model}", None
        case JobAcquired() | LaunchPlanned() | JobClaimed() | JobCharged():
            return


def budget_words(state: JobState, spent: BudgetSpent) -> str:
    """Return which budget stopped the job, and how to continue it."""
    amount, limit = hours_text(spent.device_s), hours_text(spent.limit_device_s)
    if spent.of == "job":
        hint = "Resume it with a larger budget (x_assay.budget_device_hours)."
        return f"The job's budget is used up: {amount} of {limit} device-hours. {hint}"
    limit_text = f"The limit of project {state.created.project} for this month is used up"
    return f"{limit_text}: {amount} of {limit} device-hours. Raise it, or wait for the next month; then resume."


def hours_text(device_s: float) -> str:
    """Format device-seconds as hours."""
    return f"{device_s / 3600:.4g}"


def _step_text(step: int, total: int, values: dict[str, float]) -> str:
    parts = [
        f"{text}={values[name]:.4g}"
        for name, text in (("train_loss", "training loss"), ("valid_loss", "validation loss"))
        if name in values
    ]
    return f"Step {step}/{total}: {', '.join(parts)}"
