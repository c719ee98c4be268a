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
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from assay.records.fine_tuning_job import (
    JOB_ENTRIES,
    BudgetSpent,
    CancelAsked,
    JobCharged,
    JobCheckpoint,
    JobClaimed,
    JobCreated,
    JobEntry,
    JobFailed,
    JobSucceeded,
    JobTaken,
    JobValidated,
    JobWaits,
    LaunchMade,
    LaunchPlanned,
    ModelDeleted,
    PauseAsked,
    ResumeAsked,
    RunBegan,
    RunLeft,
)
from assay.serving.ids import model_name
from assay.store.logs.entry_log import LogKind

JobStatus = Literal[
    "validating_files", "queued", "running", "pausing", "paused", "succeeded", "failed", "cancelled"
]
Wish = Literal["run", "pause", "cancel"]
ENDS = ("succeeded", "failed", "cancelled")
_WISHES: dict[str, Wish] = {"pause": "pause", "budget": "pause", "resume": "run", "cancel": "cancel"}
"""By the type of the entry after which it is so."""


class JobState(NamedTuple):
    """A job as its entries say."""

    created: JobCreated
    entries: tuple[JobEntry, ...]
    """A checkpoint has the last of its points here; the log has them all."""
    lease: int = 0
    """The number of the newest lease: what is appended under another is refused."""
    wish: Wish = "run"
    """What was asked last."""
    validated: JobValidated | None = None
    planned: LaunchPlanned | None = None
    """The launch that is under way: planned, and perhaps made."""
    launched: LaunchMade | None = None
    """Likewise, once it was made."""
    waits: JobWaits | None = None
    """What it was last said to wait for; None once that is over."""
    checkpoints: tuple[JobCheckpoint, ...] = ()
    charges: tuple[JobCharged, ...] = ()
    """What its run cost, by attempt."""
    budget_device_hours: float | None = None
    """What it may hold devices for."""
    budget_spent: BudgetSpent | None = None
    """What stopped it, until it is resumed."""
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
        if self.launched is not None and not self.is_queued_outside:
            return "running"
        return "validating_files" if self.validated is None else "queued"

    @property
    def is_at_work(self) -> bool:
        """Whether a run of it may be going on."""
        return self.planned is not None

    @property
    def is_queued_outside(self) -> bool:
        """Whether the scheduler of a cluster holds its launch."""
        return self.is_at_work and self.waits is not None and self.waits.code == "scheduler"

    @property
    def is_waiting(self) -> bool:
        """Whether it could be launched, were it its turn."""
        return not (self.has_ended or self.is_at_work or self.validated is None) and self.wish == "run"

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
        return tuple(checkpoint for checkpoint in self.checkpoints if checkpoint.step in kept)

    @property
    def is_settled(self) -> bool:
        """Whether it costs nothing more."""
        return self.has_ended and not self.is_at_work

    @property
    def charged_s(self) -> float:
        """The device-seconds of all that is over of its run."""
        return sum(charge.device_s for charge in self.charges)

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
        return JobState(created=entry, entries=(entry,), budget_device_hours=entry.budget_device_hours)
    return state._replace(entries=(*state.entries, entry), **_changes(state, entry))


def _changes(state: JobState, entry: JobEntry) -> dict[str, Any]:
    match entry:
        case JobTaken():
            return {"lease": entry.lease}
        case JobValidated():
            return {"validated": entry}
        case LaunchPlanned():
            return {"planned": entry, "launched": None, "waits": None}
        case LaunchMade():
            return {"launched": entry}
        case JobWaits():
            return {"waits": entry}
        case RunBegan():
            return {"waits": None}
        case JobCheckpoint():
            return {"checkpoints": (*state.checkpoints, entry), "left_in_vain": 0}
        case RunLeft():
            in_vain = state.left_in_vain + 1 if state.wish == "run" else 0
            return {"planned": None, "launched": None, "waits": None, "left_in_vain": in_vain}
        case PauseAsked():
            return {"wish": "pause"}
        case ResumeAsked():
            budget = entry.budget_device_hours or state.budget_device_hours
            return {"wish": "run", "left_in_vain": 0, "budget_device_hours": budget, "budget_spent": None}
        case BudgetSpent():
            return {"wish": "pause", "budget_spent": entry}
        case JobCharged():
            others = (charge for charge in state.charges if charge.attempt != entry.attempt)
            return {"charges": tuple(sorted((*others, entry), key=lambda each: each.attempt))}
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


def _light(entry: JobEntry) -> JobEntry:
    """A checkpoint without what the steps before it measured: of a long run that is most of its log."""
    if isinstance(entry, JobCheckpoint) and len(entry.points) > 1:
        return entry.model_copy(update={"points": entry.points[-1:]})
    return entry


JOB_LOG: LogKind[JobEntry, JobState] = LogKind("job's log", JOB_ENTRIES, fold_job, _light)


def newest_events(
    state: JobState, whole: Callable[[int], JobEntry], behind: tuple[int, int] | None = None
) -> Iterator[JobEvent]:
    """The newest first, or those older than the one in a place; only what is asked for is read and put into
    words. `whole` has the entry of a number with all its points."""
    last, end = behind or (len(state.entries) - 1, _NO_END)
    wishes: list[Wish] = ["run"]
    for entry in state.entries[: last + 1]:
        wishes.append(_WISHES.get(entry.type, wishes[-1]))
    for number in range(last, -1, -1):
        entry = state.entries[number]
        entry = whole(number) if isinstance(entry, JobCheckpoint) else entry
        said = _said(state, entry, wishes[number], wishes[number + 1])
        for place, (at_s, level, message, data) in reversed([*enumerate(said)]):
            if place < end:
                yield JobEvent(f"{_event_prefix(state)}{number:06x}{place:06x}", at_s, level, message, data)
        end = _NO_END


def event_place(state: JobState, event_id: str) -> tuple[int, int] | None:
    """The number of an event's entry, and its own in what that says; None where the job has none of this id."""
    found = re.fullmatch(rf"{_event_prefix(state)}([0-9a-f]{{6}})([0-9a-f]{{6}})", event_id)
    if found is None or (number := int(found[1], 16)) >= len(state.entries):
        return None
    return number, int(found[2], 16)


_NO_END = 1 << 24


def _event_prefix(state: JobState) -> str:
    return f"ftevent-{state.created.job_id.rpartition('-')[2]}"


_Said = tuple[float, Literal["info", "warn", "error"], str, dict[str, Any] | None]


def _said(state: JobState, entry: JobEntry, before: Wish, wish: Wish) -> Iterator[_Said]:
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
        case JobWaits():
            yield at_s, "info", f"Waiting: {entry.message}", None
        case RunBegan():
            yield at_s, "info", "The cluster's scheduler lets it run", None
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
            if entry.budget_device_hours is not None:
                yield (
                    at_s,
                    "info",
                    f"The job's budget is {entry.budget_device_hours:.4g} device-hours now",
                    None,
                )
            if before != "run":
                yield at_s, "info", "Asked to resume, moving job to queued state", None
        case BudgetSpent():
            yield at_s, "warn", budget_words(state, entry), None
        case CancelAsked():
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
        case JobTaken() | LaunchPlanned() | JobClaimed() | JobCharged():
            return


def budget_words(state: JobState, spent: BudgetSpent) -> str:
    """What stopped a job, and what lets it go on."""
    amount, limit = hours_text(spent.device_s), hours_text(spent.limit_device_s)
    if spent.of == "job":
        cure = "Resume it with a larger budget (x_assay.budget_device_hours)."
        return f"The job's budget is spent: {amount} of {limit} device-hours. {cure}"
    whose = f"The limit of project {state.created.project} for this month is spent"
    return f"{whose}: {amount} of {limit} device-hours. Raise it, or wait for the next month; then resume."


def hours_text(device_s: float) -> str:
    """Device-seconds in hours, as far as people want to know them."""
    return f"{device_s / 3600:.4g}"


def _step_text(step: int, total: int, values: dict[str, float]) -> str:
    parts = [
        f"{text}={values[name]:.4g}"
        for name, text in (("train_loss", "training loss"), ("valid_loss", "validation loss"))
        if name in values
    ]
    return f"Step {step}/{total}: {', '.join(parts)}"
