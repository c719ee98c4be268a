r"""What a job's entries come to: its status, what was asked of it, what it measured, and the events of its
life.

    validating_files --> queued --> running --> succeeded
                           ^  \        |  ^
                           |   paused <-+  |  preempted: by itself
                           +-----+---------+
    failed: nothing goes on by itself; cancelled: from any but an end

The status is derived and never stored. Events are the entries in words, so each is there exactly once, and
its id is the number of its entry.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from assay.records.fine_tuning_job import (
    JOB_ENTRIES,
    CancelAsked,
    JobCheckpoint,
    JobClaimed,
    JobCreated,
    JobEntry,
    JobFailed,
    JobSucceeded,
    JobTaken,
    JobValidated,
    LaunchMade,
    LaunchPlanned,
    ModelDeleted,
    PauseAsked,
    ResumeAsked,
    RunLeft,
)
from assay.serving.ids import model_name
from assay.store.logs.entry_log import LogKind

JobStatus = Literal[
    "validating_files", "queued", "running", "pausing", "paused", "succeeded", "failed", "cancelled"
]
Wish = Literal["run", "pause", "cancel"]
ENDS = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class JobState:
    """A job as its entries say."""

    created: JobCreated
    entries: tuple[JobEntry, ...]
    lease: int = 0
    """The number of the newest lease: what is appended under another is refused."""
    wish: Wish = "run"
    """What was asked last."""
    validated: JobValidated | None = None
    planned: LaunchPlanned | None = None
    """The launch that is under way: planned, and perhaps made."""
    launched: LaunchMade | None = None
    """Likewise, once it was made."""
    checkpoints: tuple[JobCheckpoint, ...] = ()
    failed: JobFailed | None = None
    succeeded: JobSucceeded | None = None
    cancelled_s: float | None = None
    is_model_deleted: bool = False
    claim: int = 0
    """The number of the last repeat of its request that was answered with it."""
    left_in_vain: int = 0
    """How many launches in a row left, unasked, without a further commit."""

    @property
    def status(self) -> JobStatus:
        """As the API has it; `pausing` until the run has committed and left."""
        if self.succeeded is not None:
            return "succeeded"
        if self.wish == "cancel":
            return "cancelled"
        if self.failed is not None:
            return "failed"
        if self.wish == "pause":
            return "pausing" if self.is_at_work else "paused"
        if self.launched is not None:
            return "running"
        return "validating_files" if self.validated is None else "queued"

    @property
    def is_at_work(self) -> bool:
        """Whether a run of it may be going on."""
        return self.planned is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing can be asked of it any more."""
        return self.status in ENDS

    @property
    def ended_s(self) -> float | None:
        """When that was."""
        last = self.succeeded or self.failed
        return self.cancelled_s if last is None else last.at_s

    @property
    def last_step(self) -> int:
        """The step of its last checkpoint; 0 before the first."""
        return self.checkpoints[-1].step if self.checkpoints else 0

    @property
    def usable_checkpoints(self) -> tuple[JobCheckpoint, ...]:
        """Those that were not retired."""
        kept = self.checkpoints[-1].kept_steps if self.checkpoints else ()
        return tuple(each for each in self.checkpoints if each.step in kept)

    @property
    def model(self) -> str:
        """The name of what it makes."""
        created = self.created
        return model_name(created.model, created.project, created.suffix, created.job_id)


class JobEvent(NamedTuple):
    """One line of a job's life."""

    event_id: str
    at_s: float
    level: Literal["info", "warn", "error"]
    message: str
    data: dict[str, Any] | None = None
    """What a step measured; None of a message."""


def fold_job(state: JobState | None, entry: JobEntry) -> JobState:
    """The state behind one more entry."""
    if state is None:
        assert isinstance(entry, JobCreated), f"a job's log begins with {entry.type}"
        return JobState(created=entry, entries=(entry,))
    return replace(state, entries=(*state.entries, entry), **_changes(state, entry))


def _changes(state: JobState, entry: JobEntry) -> dict[str, Any]:
    match entry:
        case JobTaken():
            return {"lease": entry.lease}
        case JobValidated():
            return {"validated": entry}
        case LaunchPlanned():
            return {"planned": entry, "launched": None}
        case LaunchMade():
            return {"launched": entry}
        case JobCheckpoint():
            return {"checkpoints": (*state.checkpoints, entry), "left_in_vain": 0}
        case RunLeft():
            in_vain = state.left_in_vain + 1 if state.wish == "run" else 0
            return {"planned": None, "launched": None, "left_in_vain": in_vain}
        case PauseAsked():
            return {"wish": "pause"}
        case ResumeAsked():
            return {"wish": "run", "left_in_vain": 0}
        case CancelAsked():
            return {"wish": "cancel", "cancelled_s": entry.at_s}
        case JobFailed():
            return {"failed": entry, "planned": None, "launched": None}
        case JobSucceeded():
            return {"succeeded": entry, "planned": None, "launched": None}
        case ModelDeleted():
            return {"is_model_deleted": True}
        case JobClaimed():
            return {"claim": max(state.claim, entry.retry_count)}
        case JobCreated():
            raise AssertionError("a job is created once")


JOB_LOG: LogKind[JobEntry, JobState] = LogKind("job's log", JOB_ENTRIES, fold_job)


def job_events(state: JobState) -> list[JobEvent]:
    """All events, the oldest first."""
    found: list[JobEvent] = []
    digits = state.created.job_id.rpartition("-")[2]
    wish: Wish = "run"
    for number, entry in enumerate(state.entries):
        wish = {"pause": "pause", "resume": "run", "cancel": "cancel"}.get(entry.type, wish)  # type: ignore[assignment]
        for place, (at_s, level, message, data) in enumerate(_said(state, entry, wish)):
            found.append(JobEvent(f"ftevent-{digits}{number:06x}{place:06x}", at_s, level, message, data))
    return found


def is_event_id(text: str) -> bool:
    """Whether an event could have it."""
    return re.fullmatch(r"ftevent-[0-9a-f]{36,}", text) is not None


_Said = tuple[float, Literal["info", "warn", "error"], str, dict[str, Any] | None]


def _said(state: JobState, entry: JobEntry, wish: Wish) -> Iterator[_Said]:
    at_s = entry.at_s
    match entry:
        case JobCreated():
            yield at_s, "info", f"Created fine-tuning job: {entry.job_id}", None
            yield at_s, "info", f"Validating training file: {entry.training_file}", None
        case JobValidated():
            yield at_s, "info", "Files validated, moving job to queued state", None
        case LaunchMade(step=0):
            yield at_s, "info", "Fine-tuning job started", None
        case LaunchMade():
            yield at_s, "info", f"Fine-tuning job goes on from step {entry.step}", None
        case JobCheckpoint():
            total = state.validated.num_steps if state.validated else entry.step
            for point in entry.points:
                yield point.at_s, "info", _step_text(point.step, total, point.values), {
                    "step": point.step, "total_steps": total, **point.values,
                }  # fmt: skip
            yield at_s, "info", f"Checkpoint created at step {entry.step}", None
        case RunLeft():
            said = {"pause": "Paused", "cancel": "Stopped", "run": "Interrupted"}[wish]
            rest = "; it goes on by itself" if wish == "run" else ""
            yield at_s, "warn" if wish == "run" else "info", f"{said} at step {entry.step}{rest}", None
        case PauseAsked():
            yield at_s, "info", "Asked to pause", None
        case ResumeAsked():
            yield at_s, "info", "Asked to resume, moving job to queued state", None
        case CancelAsked():
            yield at_s, "info", "Fine-tuning job cancelled", None
        case JobFailed():
            yield at_s, "error", entry.message, None
        case JobSucceeded():
            yield at_s, "info", f"New fine-tuned model created: {state.model}", None
            yield at_s, "info", "The job has successfully completed", None
        case ModelDeleted():
            yield at_s, "info", f"Deleted model: {state.model}", None
        case JobTaken() | LaunchPlanned() | JobClaimed():
            return


def _step_text(step: int, total: int, values: dict[str, float]) -> str:
    parts = [
        f"{text}={values[name]:.4g}"
        for name, text in (("train_loss", "training loss"), ("valid_loss", "validation loss"))
        if name in values
    ]
    return f"Step {step}/{total}: {', '.join(parts)}"
