"""What an API accepted, written into its logs without a client or a worker."""

from assay.records.batch import BatchCreated
from assay.records.eval_run import EvalRunCreated
from assay.records.fine_tuning_job import (
    JobAcquired,
    JobCharged,
    JobCheckpoint,
    JobCreated,
    JobValidated,
    LaunchPlanned,
    LaunchStarted,
)
from assay.records.session import SessionCreated
from assay.serving.admin.spend import mark_charged
from assay.serving.ids import new_id
from assay.serving.openai.app_state import AppState


def accept_job(api: AppState, project: str = "default", *, at_s: float = 1_800_000_000.0, **fields: object) -> str:
    job_id = new_id("ftjob", at_s)
    values = {
        "job_id": job_id, "project": project, "at_s": at_s, "model": "tiny", "base": {}, "method": "supervised",
        "hyperparameters": {"n_epochs": 2}, "training_file": "file-1", "seed": 1, "request_sha256": "",
    }  # fmt: skip
    api.jobs.put(JobCreated.model_validate(values | fields))
    return job_id


def validate(api: AppState, job_id: str, *, at_s: float = 1_800_000_001.0) -> None:
    api.jobs.change(job_id, lambda _: JobAcquired(at_s=at_s, lease=1, worker="w"))
    validated = JobValidated(
        at_s=at_s, lease=1, run_id=job_id, num_rows=8, dataset_fingerprint="d", num_steps=10,
        hyperparameters={"n_epochs": 2},
    )  # fmt: skip
    api.jobs.change(job_id, lambda _: validated)


def launch(api: AppState, job_id: str, *, at_s: float = 1_800_000_002.0) -> None:
    api.jobs.change(job_id, lambda _: LaunchPlanned(at_s=at_s, lease=1, number=1))
    api.jobs.change(job_id, lambda _: LaunchStarted(at_s=at_s, lease=1, number=1, where="here", step=0))
    checkpoint = JobCheckpoint(
        at_s=at_s + 1, lease=1, step=5, weights_digest="w", retained_steps=(5,),
        points=({"step": 5, "at_s": at_s + 1, "values": {"train_loss": 0.5}},),
    )  # fmt: skip
    api.jobs.change(job_id, lambda _: checkpoint)


def charge(api: AppState, job_id: str, *, attempt: int, began_s: float, ended_s: float, device_s: float) -> None:
    charged = JobCharged(
        at_s=ended_s, lease=1, attempt=attempt, began_s=began_s, ended_s=ended_s, device_s=device_s
    )  # fmt: skip
    state = api.jobs.state(job_id)
    assert state is not None
    mark_charged(api.jobs.store, state.created.project, job_id, charged)
    api.jobs.change(job_id, lambda _: charged)


def accept_batch(api: AppState, project: str = "default", *, at_s: float = 1_800_000_003.0) -> str:
    batch_id = new_id("batch", at_s)
    api.batches.put(
        BatchCreated(
            batch_id=batch_id, project=project, at_s=at_s, endpoint="/v1/chat/completions", input_file_id="file-2",
            model="tiny", expires_s=at_s + 86_400, request_sha256="",
        )
    )  # fmt: skip
    return batch_id


def accept_session(api: AppState, project: str = "default", *, at_s: float = 1_800_000_005.0) -> str:
    session_id = new_id("session", at_s)
    api.sessions.put(SessionCreated(session_id=session_id, project=project, at_s=at_s, key_id="", sdk_version="0.38.0"))
    return session_id


def accept_eval_run(
    api: AppState, project: str = "default", *, at_s: float = 1_800_000_004.0, name: str = "nightly"
) -> str:
    run_id = new_id("evalrun", at_s)
    api.eval_runs.put(
        EvalRunCreated(
            run_id=run_id, eval_id=new_id("eval", at_s), project=project, at_s=at_s, name=name, data_source={},
            item_schema={}, testing_criteria=({"type": "string_check", "name": "exact"},), model="tiny", sources={},
            request_sha256="",
        )
    )  # fmt: skip
    return run_id
