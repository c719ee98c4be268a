"""API objects of files, uploads, batches, jobs and models as the SDK's types define them; extensions are in
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
from assay.serving.queue.status import QueueStatus
from assay.serving.uploads import UploadState

_COMMON_HYPERPARAMETERS = ("n_epochs", "batch_size", "learning_rate_multiplier")
"""Hyperparameters that the SDK's job type always has."""


def file_object(file: FileCreated) -> dict[str, Any]:
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


def upload_object(state: UploadState, now_s: float, file: FileCreated | None = None) -> dict[str, Any]:
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
        "file": None if file is None else file_object(file),
    }


def cost_object(state: BatchState | EvalRunState, spent_reason: Callable[[str], str | None]) -> dict[str, Any]:
    """Return charged device-hours, and why no more can be spent."""
    return {
        "charged_device_hours": sum(charge.device_s for charge in state.charges) / 3600,
        "blocked_by": spent_reason(state.created.project) if state.needs_chunk else None,
    }


def batch_object(state: BatchState, spent_reason: Callable[[str], str | None]) -> dict[str, Any]:
    """`Batch`. `why_spent`: project -> why it may spend nothing more."""
    created, ended = state.created, state.ended
    outcome = None if ended is None or state.gathering is None else state.gathering.outcome
    faults = () if state.failed is None else state.failed.faults
    names = ("code", "message", "line", "param")
    input_tokens = sum(chunk.input_tokens for chunk in state.charges)
    output_tokens = sum(chunk.output_tokens for chunk in state.charges)
    return {
        "id": created.batch_id,
        "object": "batch",
        "endpoint": created.endpoint,
        "model": created.model,
        "input_file_id": created.input_file_id,
        "completion_window": "24h",
        "status": state.status,
        "errors": {"object": "list", "data": [{name: getattr(fault, name) for name in names} for fault in faults]}
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
        "cancelling_at": _whole_s(state.cancel_requested),
        "cancelled_at": _whole_s(ended) if outcome == "cancelled" else None,
        "request_counts": {
            "total": 0 if state.read is None else state.read.num_requests,
            "completed": sum(chunk.completed for chunk in state.charges),
            "failed": sum(chunk.failed for chunk in state.charges),
        },
        "usage": {
            "input_tokens": input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input_tokens + output_tokens,
        },
        "metadata": created.metadata,
        "x_assay": cost_object(state, spent_reason),
    }


def _whole_s(entry: Any) -> int | None:
    return None if entry is None else int(entry.at_s)


def part_object(upload_id: str, part: PartAdded) -> dict[str, Any]:
    """`UploadPart`."""
    return {"id": part.part_id, "object": "upload.part", "created_at": int(part.at_s), "upload_id": upload_id}


def job_object(state: JobState, queue_status: QueueStatus | None) -> dict[str, Any]:
    """`FineTuningJob`; `auto` hyperparameters become numbers after validation."""
    created, validated, succeeded = state.created, state.validated, state.succeeded
    names = SERVED_METHODS[created.method].hyperparameters
    concrete = validated.hyperparameters if validated is not None else {}
    shown = {name: concrete.get(name, created.hyperparameters.get(name, "auto")) for name in names}
    failed = None if state.desired_state == "cancel" else state.failed
    grader = {} if created.grader is None else {"grader": created.grader}
    finish_s = None if queue_status is None else queue_status.estimate.finish_s
    return {
        "id": created.job_id,
        "object": "fine_tuning.job",
        "created_at": int(created.at_s),
        "error": None if failed is None else {"code": failed.code, "message": failed.message, "param": failed.param},
        "estimated_finish": None if finish_s is None else int(finish_s),
        "fine_tuned_model": state.model if succeeded is not None else None,
        "finished_at": None if state.ended_s is None else int(state.ended_s),
        "hyperparameters": {name: shown[name] for name in _COMMON_HYPERPARAMETERS},
        "integrations": None,
        "metadata": created.metadata,
        "method": {"type": created.method, created.method: {"hyperparameters": shown, **grader}},
        "model": created.model,
        "organization_id": created.project,
        "result_files": [] if succeeded is None else [succeeded.result_file],
        "seed": created.seed,
        "status": state.status,
        "trained_tokens": None if succeeded is None else succeeded.trained_tokens,
        "training_file": created.training_file,
        "validation_file": created.validation_file,
        "x_assay": _ours(state, queue_status),
    }


def _ours(state: JobState, queue_status: QueueStatus | None) -> dict[str, Any]:
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
        if queue_status is None or queue_status.code is None
        else {
            "position": queue_status.position,
            "waiting": queue_status.num_waiting,
            "code": queue_status.code,
            "blocked_by": queue_status.blocked_by,
        },
        "charged_device_hours": state.charged_s / 3600,
        "evaluation_device_hours": sum(charge.device_s for charge in state.charges if not charge.attempt) / 3600,
        "budget_device_hours": state.budget_device_hours,
        "budget_spent": None if state.budget_spent is None else state.budget_spent.of,
        "estimate": _why_no_estimate(state) if queue_status is None else queue_status.estimate.basis,
    }


def _why_no_estimate(state: JobState) -> str | None:
    return None if state.has_ended else f"it is {state.status}"


def event_object(event: JobEvent) -> dict[str, Any]:
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


def checkpoint_object(state: JobState, checkpoint: JobCheckpoint) -> dict[str, Any]:
    """`FineTuningJobCheckpoint`; metrics of its last step and of its evaluation."""
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
    """Return the checkpoint's id; ids sort by step."""
    return f"ftckpt_{state.created.job_id.rpartition('-')[2]}{step:010d}"


def model_object(name: str, created_s: float, owned_by: str) -> dict[str, Any]:
    """`Model`."""
    return {"id": name, "object": "model", "created": int(created_s), "owned_by": owned_by}
