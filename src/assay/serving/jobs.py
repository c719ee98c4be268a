"""Creates, pauses, resumes and cancels jobs. A response is sent once its log entry is durable."""

from collections.abc import Callable, Iterator

from assay.base.clock import Clock
from assay.base.errors import ConfigError
from assay.records.fine_tuning_job import (
    BudgetSpent,
    CancelRequested,
    JobClaimed,
    JobCreated,
    JobEntry,
    ModelDeleted,
    PauseRequested,
    ResumeRequested,
)
from assay.serving.api_error import ApiError
from assay.serving.idempotency_keys import IdempotentRepository
from assay.serving.job import JOB_LOG, JobState, hours_text
from assay.store.objects import ObjectStore


class JobRepository(IdempotentRepository[JobEntry, JobState]):
    """Jobs in an object store."""

    id_kind = "ftjob"
    log_kind = JOB_LOG
    title, param, id_field = "fine-tuning job", "fine_tuning_job_id", "job_id"
    tracks_open = True
    claimed = JobClaimed

    def note_model(self, created: JobCreated) -> None:
        """Mark that the job may have a model; call it before the first checkpoint is logged."""
        self.store.put(f"{_index_of_models(created.project)}{created.job_id}", b"")

    def restore_index(self, yield_cpu: Callable[[], None]) -> None:
        """See `ResourceRepository`; also restores the markers of jobs with models."""
        super().restore_index(yield_cpu)
        noted = {item.key.rpartition("/")[2] for item in self.store.list("made/ftjob/")}
        for job_id in self.ids():
            if job_id not in noted and (state := self.state_once(job_id)) and state.checkpoints:
                self.note_model(state.created)
                yield_cpu()

    def with_models(self, project: str) -> Iterator[JobState]:
        """Yield the project's jobs that may have a model, oldest first."""
        found = (item.key.rpartition("/")[2] for item in self.store.list(_index_of_models(project)))
        return (state for _, state in self.states(sorted(found)))

    def pause(self, job_id: str) -> JobState:
        """Request a commit and a stop; idempotent."""
        requested = PauseRequested(at_s=self._clock.now_s())
        return self.change(job_id, lambda state: requested if _may(state, "pause", desired_state="pause") else None)

    def resume(self, job_id: str, budget_device_hours: float | None = None) -> JobState:
        """Request to continue from the last commit; idempotent. A budget applies from now on."""
        requested = ResumeRequested(at_s=self._clock.now_s(), budget_device_hours=budget_device_hours)
        return self.change(job_id, lambda state: requested if _may_resume(state, budget_device_hours) else None)

    def cancel(self, job_id: str) -> JobState:
        """Request a final stop; idempotent."""
        requested = CancelRequested(at_s=self._clock.now_s())
        return self.change(job_id, lambda state: requested if _may(state, "cancel", desired_state="cancel") else None)

    def delete_model(self, job_id: str) -> JobState:
        """Make the job's model unavailable; idempotent."""
        deleted = ModelDeleted(at_s=self._clock.now_s())
        return self.change(job_id, lambda state: None if state.is_model_deleted else deleted)


def check_not_managed_job(store: ObjectStore, run_id: str, clock: Clock, *, is_launched: bool) -> None:
    """Raise `ConfigError` if a run belongs to a job and the caller must not continue it.

    `is_launched`: the caller is a scheduler that starts a worker's launch, possibly after the job was paused.
    """
    state = JobRepository(store, clock).state(run_id)
    rests = ("paused", "cancelled")
    if state is None or state.status in ("succeeded", "failed") or (is_launched and state.status not in rests):
        return
    hint = {
        "paused": "Resume it over the API (fine_tuning.jobs.resume).",
        "cancelled": f"Start a new run from its last commit: 'assay train --from {run_id}'.",
    }.get(state.status, "'assay serve worker' continues it automatically.")
    raise ConfigError(f"run {run_id} belongs to a job of 'assay serve', which is {state.status}. {hint}")


def _index_of_models(project: str) -> str:
    return f"made/ftjob/{project}/"


def _may(state: JobState, verb: str, *, desired_state: str) -> bool:
    """Return whether to log the request: False if it was made already. Raises `ApiError` if it is impossible."""
    if state.desired_state == desired_state and (desired_state == "cancel" or not state.has_ended):
        return False
    if state.has_ended:
        raise _illegal(state, verb)
    return True


def _may_resume(state: JobState, budget_device_hours: float | None) -> bool:
    if state.has_ended:
        raise _illegal(state, "resume")
    is_new_budget = budget_device_hours not in (None, state.budget_device_hours)
    budget = budget_device_hours or state.budget_device_hours
    spent = state.budget_spent if state.budget_spent and state.budget_spent.of == "job" else None
    held_s = max(state.charged_s, 0.0 if spent is None else spent.device_s)
    if budget is not None and (is_new_budget or spent is not None) and budget * 3600 <= held_s:
        raise ApiError(
            f"Job {state.created.job_id} has used {hours_text(held_s)} device-hours, but its budget is "
            f"{budget:.4g}. Raise x_assay.budget_device_hours.",
            param="x_assay.budget_device_hours",
            code="budget_spent",
        )
    if is_new_budget:
        return True
    requests = [entry for entry in state.entries if isinstance(entry, PauseRequested | ResumeRequested | BudgetSpent)]
    if not requests:
        raise _illegal(state, "resume")
    return not isinstance(requests[-1], ResumeRequested)


def _illegal(state: JobState, verb: str) -> ApiError:
    status, job_id = state.status, state.created.job_id
    hint = "Create a new job." if state.has_ended else "Only a job that was paused can be resumed."
    return ApiError(f"Job {job_id} is {status}: it cannot {verb}. {hint}", code="invalid_job_state")
