"""Jobs: created, paused, resumed and cancelled by whoever may; an answer leaves when its entry is durable."""

from collections.abc import Callable, Iterator

from assay.base.clock import Clock
from assay.base.errors import ConfigError
from assay.records.fine_tuning_job import (
    BudgetSpent,
    CancelAsked,
    JobCreated,
    JobEntry,
    ModelDeleted,
    PauseAsked,
    ResumeAsked,
)
from assay.serving.job import JOB_LOG, JobState, hours_text
from assay.serving.job_repository import Shelf
from assay.serving.refusal import RefusedError
from assay.store.objects import ObjectStore


class JobShelf:
    """All jobs of a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.shelf: Shelf[JobEntry, JobState] = Shelf(store, "ftjob", JOB_LOG, is_worked_at=True)
        self._clock = clock

    def put(self, created: JobCreated) -> JobState:
        """Make a job; made twice it is made once."""
        return self.shelf.begin(created.job_id, created)

    def find(self, job_id: str, project: str) -> JobState | None:
        """The job, if it is there and the project's."""
        state = self.shelf.state(job_id)
        return state if state is not None and state.created.project == project else None

    def note_model(self, created: JobCreated) -> None:
        """From now on the job may have made a model: to be noted before it has."""
        self.shelf.store.put(f"{_made(created.project)}{created.job_id}", b"")

    def relist(self, rest: Callable[[], None]) -> None:
        """See `Shelf`; the models that jobs have made are in a list of their own."""
        self.shelf.relist(lambda state: [state.created.project], rest)
        noted = {item.key.rpartition("/")[2] for item in self.shelf.store.list("made/ftjob/")}
        for job_id in self.shelf.ids():
            if job_id not in noted and (state := self.shelf.state_once(job_id)) and state.checkpoints:
                self.note_model(state.created)
                rest()

    def with_models(self, project: str) -> Iterator[JobState]:
        """The project's jobs that may have, the oldest first."""
        found = (item.key.rpartition("/")[2] for item in self.shelf.store.list(_made(project)))
        return (state for _, state in self.shelf.states(sorted(found)))

    def pause(self, job_id: str) -> JobState:
        """Ask for a commit and a stop; a job that is paused already is answered with as it is."""
        asked = PauseAsked(at_s=self._clock.now_s())
        return self._ask(job_id, lambda state: asked if _may(state, "pause", wish="pause") else None)

    def resume(self, job_id: str, budget_device_hours: float | None = None) -> JobState:
        """Ask to go on from the last commit; likewise where it goes on already. A budget holds from now on."""
        asked = ResumeAsked(at_s=self._clock.now_s(), budget_device_hours=budget_device_hours)
        return self._ask(job_id, lambda state: asked if _may_resume(state, budget_device_hours) else None)

    def cancel(self, job_id: str) -> JobState:
        """Ask for a stop for good; likewise where it is cancelled already."""
        asked = CancelAsked(at_s=self._clock.now_s())
        return self._ask(job_id, lambda state: asked if _may(state, "cancel", wish="cancel") else None)

    def delete_model(self, job_id: str) -> JobState:
        """Let the model that a job made answer nobody any more; twice is once."""
        deleted = ModelDeleted(at_s=self._clock.now_s())
        return self._ask(job_id, lambda state: None if state.is_model_deleted else deleted)

    def _ask(self, job_id: str, decide: Callable[[JobState], JobEntry | None]) -> JobState:
        state = self.shelf.log(job_id).append(lambda there: None if there is None else decide(there))
        assert state is not None, f"{job_id} was found before"
        return state


def refuse_beside_worker(store: ObjectStore, run_id: str, clock: Clock, *, is_launched: bool) -> None:
    """Raise `ConfigError` where a run is a job's, and going on with it is not for its caller to decide.

    `is_launched`: by a scheduler, which lets run what a worker gave it, and may do so once the job is to rest.
    """
    state = JobShelf(store, clock).shelf.state(run_id)
    rests = ("paused", "cancelled")
    if state is None or state.status in ("succeeded", "failed") or (is_launched and state.status not in rests):
        return
    cure = {
        "paused": "Resume it over the API (fine_tuning.jobs.resume).",
        "cancelled": f"Begin a run of its own with its last commit: 'assay train --from {run_id}'.",
    }.get(state.status, "'assay worker' goes on with it by itself.")
    raise ConfigError(f"run {run_id} is that of a job of 'assay serve', which is {state.status}. {cure}")


def _made(project: str) -> str:
    return f"made/ftjob/{project}/"


def _may(state: JobState, verb: str, *, wish: str) -> bool:
    """Whether it is to be asked: not where that was asked already; refused where it cannot be."""
    if state.wish == wish and (wish == "cancel" or not state.has_ended):
        return False
    if state.has_ended:
        raise _illegal(state, verb)
    return True


def _may_resume(state: JobState, budget_device_hours: float | None) -> bool:
    if state.has_ended:
        raise _illegal(state, "resume")
    is_given = budget_device_hours not in (None, state.budget_device_hours)
    budget = budget_device_hours or state.budget_device_hours
    spent = state.budget_spent if state.budget_spent and state.budget_spent.of == "job" else None
    held_s = max(state.charged_s, 0.0 if spent is None else spent.device_s)
    if budget is not None and (is_given or spent is not None) and budget * 3600 <= held_s:
        raise RefusedError(
            f"Job {state.created.job_id} has held devices for {hours_text(held_s)} hours, and its budget is "
            f"{budget:.4g}. Give it more with x_assay.budget_device_hours.",
            param="x_assay.budget_device_hours",
            code="budget_spent",
        )
    if is_given:
        return True
    asks = [entry for entry in state.entries if isinstance(entry, PauseAsked | ResumeAsked | BudgetSpent)]
    if not asks:
        raise _illegal(state, "resume")
    return not isinstance(asks[-1], ResumeAsked)


def _illegal(state: JobState, verb: str) -> RefusedError:
    status, job_id = state.status, state.created.job_id
    cure = "Create a new job." if state.has_ended else "Only a job that was paused can be resumed."
    return RefusedError(f"Job {job_id} is {status}: it cannot {verb}. {cure}", code="invalid_job_state")
