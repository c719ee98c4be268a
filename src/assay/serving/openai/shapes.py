"""Files, jobs, events, checkpoints, batches and models as the SDK's types have them; what is ours stands in
`x_assay`."""

from collections.abc import Callable, Mapping
from typing import Any

from assay.records.chunked_upload import PartAdded
from assay.records.fine_tuning_job import JobCheckpoint
from assay.records.uploaded_file import FileCreated
from assay.serving.batches.batches import BatchState
from assay.serving.evals.runs import EvalRunState
from assay.serving.ids import checkpoint_name
from assay.serving.job import JobEvent, JobState
from assay.serving.methods import SERVED_METHODS
from assay.serving.queue.standing import JobStanding
from assay.serving.uploads import UploadState

_IN_EVERY_JOB = ("n_epochs", "batch_size", "learning_rate_multiplier")
"""Hyperparameters that the type of a job always has."""


def file_shape(file: FileCreated) -> dict[str, Any]:
    """`FileObject`."""
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": int(file.at_s),
        "expires_at": None if file.expires_s is None else int(file.expires_s),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
        "x_assay": {"sha256": file.sha256},
    }


def upload_shape(state: UploadState, now_s: float, file: FileCreated | None = None) -> dict[str, Any]:
    """`Upload`."""
    created = state.created
    return {
        "id": created.upload_id,
        "object": "upload",
        "bytes": created.num_bytes,
        "created_at": int(created.at_s),
        "expires_at": int(created.expires_s),
        "filename": created.filename,
        "purpose": created.purpose,
        "status": state.status(now_s),
        "file": None if file is None else file_shape(file),
    }


def cost_shape(state: BatchState | EvalRunState, why_spent: Callable[[str], str | None]) -> dict[str, Any]:
    """What it has cost, and what keeps it from costing more."""
    return {
        "charged_device_hours": sum(charge.device_s for charge in state.charges) / 3600,
        "blocked_by": why_spent(state.created.project) if state.wants_chunk else None,
    }


def batch_shape(state: BatchState, why_spent: Callable[[str], str | None]) -> dict[str, Any]:
    """`Batch`. `why_spent`: of a project, why nothing more is charged to it."""
    created, ended = state.created, state.ended
    outcome = None if ended is None or state.gathering is None else state.gathering.outcome
    faults = () if state.failed is None else state.failed.faults
    names = ("code", "message", "line", "param")
    input_tokens = sum(each.input_tokens for each in state.answered)
    output_tokens = sum(each.output_tokens for each in state.answered)
    return {
        "id": created.batch_id,
        "object": "batch",
        "endpoint": created.endpoint,
        "model": created.model,
        "input_file_id": created.input_file_id,
        "completion_window": "24h",
        "status": state.status,
        "errors": {
            "object": "list",
            "data": [{name: getattr(fault, name) for name in names} for fault in faults],
        }
        if faults
        else None,
        "output_file_id": None if ended is None else ended.output_file_id,
        "error_file_id": None if ended is None else ended.error_file_id,
        "created_at": int(created.at_s),
        "in_progress_at": _whole_s(state.read),
        "expires_at": int(created.expires_s),
        "finalizing_at": _whole_s(state.gathering),
        "completed_at": _whole_s(ended) if outcome == "completed" else None,
        "failed_at": _whole_s(state.failed),
        "expired_at": _whole_s(ended) if outcome == "expired" else None,
        "cancelling_at": _whole_s(state.cancel_asked),
        "cancelled_at": _whole_s(ended) if outcome == "cancelled" else None,
        "request_counts": {
            "total": 0 if state.read is None else state.read.num_requests,
            "completed": sum(each.completed for each in state.answered),
            "failed": sum(each.failed for each in state.answered),
        },
        "usage": {
            "input_tokens": input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input_tokens + output_tokens,
        },
        "metadata": created.metadata,
        "x_assay": cost_shape(state, why_spent),
    }


def _whole_s(entry: Any) -> int | None:
    """When an entry was put, if it was."""
    return None if entry is None else int(entry.at_s)


def part_shape(upload_id: str, part: PartAdded) -> dict[str, Any]:
    """`UploadPart`."""
    return {"id": part.part_id, "object": "upload.part", "created_at": int(part.at_s), "upload_id": upload_id}


def job_shape(state: JobState, standing: JobStanding | None) -> dict[str, Any]:
    """`FineTuningJob`; hyperparameters are numbers once its files are validated. `standing`: in the queue."""
    created, validated, succeeded = state.created, state.validated, state.succeeded
    names = SERVED_METHODS[created.method].hyperparameters
    concrete = validated.hyperparameters if validated is not None else {}
    shown = {name: concrete.get(name, created.hyperparameters.get(name, "auto")) for name in names}
    failed = None if state.wish == "cancel" else state.failed
    paid = {} if created.grader is None else {"grader": created.grader}
    finish_s = None if standing is None else standing.estimate.finish_s
    return {
        "id": created.job_id,
        "object": "fine_tuning.job",
        "created_at": int(created.at_s),
        "error": None
        if failed is None
        else {"code": failed.code, "message": failed.message, "param": failed.param},
        "estimated_finish": None if finish_s is None else int(finish_s),
        "fine_tuned_model": state.model if succeeded is not None else None,
        "finished_at": None if state.ended_s is None else int(state.ended_s),
        "hyperparameters": {name: shown[name] for name in _IN_EVERY_JOB},
        "integrations": None,
        "metadata": created.metadata,
        "method": {"type": created.method, created.method: {"hyperparameters": shown, **paid}},
        "model": created.model,
        "organization_id": created.project,
        "result_files": [] if succeeded is None else [succeeded.result_file],
        "seed": created.seed,
        "status": state.status,
        "trained_tokens": None if succeeded is None else succeeded.trained_tokens,
        "training_file": created.training_file,
        "validation_file": created.validation_file,
        "x_assay": _ours(state, standing),
    }


def _ours(state: JobState, standing: JobStanding | None) -> dict[str, Any]:
    validated, launched, succeeded = state.validated, state.launched, state.succeeded
    return {
        "run": None if validated is None else validated.run_id,
        "num_rows": None if validated is None else validated.num_rows,
        "total_steps": None if validated is None else validated.num_steps,
        "committed_step": state.last_step,
        "where": None if launched is None else launched.where,
        "weights_digest": None if succeeded is None else succeeded.weights_digest,
        "measured": None if succeeded is None else succeeded.measured,
        "queue": None
        if standing is None or standing.code is None
        else {
            "place": standing.place,
            "waiting": standing.num_waiting,
            "code": standing.code,
            "blocked_by": standing.blocked_by,
        },
        "charged_device_hours": state.charged_s / 3600,
        "evaluation_device_hours": sum(charge.device_s for charge in state.charges if not charge.attempt)
        / 3600,
        "budget_device_hours": state.budget_device_hours,
        "budget_spent": None if state.budget_spent is None else state.budget_spent.of,
        "estimate": _why_no_estimate(state) if standing is None else standing.estimate.rests_on,
    }


def _why_no_estimate(state: JobState) -> str | None:
    return None if state.has_ended else f"it is {state.status}"


def event_shape(event: JobEvent) -> dict[str, Any]:
    """`FineTuningJobEvent`."""
    return {
        "id": event.event_id,
        "object": "fine_tuning.job.event",
        "created_at": int(event.at_s),
        "level": event.level,
        "message": event.message,
        "type": "message" if event.data is None else "metrics",
        "data": event.data,
    }


def checkpoint_shape(state: JobState, checkpoint: JobCheckpoint) -> dict[str, Any]:
    """`FineTuningJobCheckpoint`; its metrics are those of its last step, and of its weights' evaluation."""
    values: Mapping[str, float] = checkpoint.points[-1].values if checkpoint.points else {}
    if state.succeeded is not None and state.succeeded.step == checkpoint.step:
        values = {**values, **state.succeeded.validation}
    return {
        "id": checkpoint_id(state, checkpoint.step),
        "object": "fine_tuning.job.checkpoint",
        "created_at": int(checkpoint.at_s),
        "fine_tuned_model_checkpoint": checkpoint_name(state.model, checkpoint.step),
        "fine_tuning_job_id": state.created.job_id,
        "metrics": {"step": checkpoint.step, **values},
        "step_number": checkpoint.step,
        "x_assay": {"weights_digest": checkpoint.weights_digest},
    }


def checkpoint_id(state: JobState, step: int) -> str:
    """Its ids sort by step."""
    return f"ftckpt_{state.created.job_id.rpartition('-')[2]}{step:010d}"


def model_shape(name: str, created_s: float, owned_by: str) -> dict[str, Any]:
    """`Model`."""
    return {"id": name, "object": "model", "created": int(created_s), "owned_by": owned_by}
