"""A worker that trains nothing: it puts the entries of a job's log that a real one would, as fast as it looks.

What answers is a parrot, and webhooks are told as they are by a real one.

Before the first pause it makes two checkpoints and no more, so that whoever drives the job has time to pause.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

from assay.records.fine_tuning_job import (
    JobCheckpoint,
    JobEntry,
    JobSucceeded,
    JobValidated,
    LaunchPlanned,
    LaunchStarted,
    MetricPoint,
    PauseRequested,
    RunLeft,
)
from assay.records.uploaded_file import FileCreated
from assay.serving.ids import derived_id
from assay.serving.job import JobState
from assay.serving.openai.app_state import AppState
from assay.serving.webhooks.delivery import WebhookDelivery
from assay.store.leased_worker import LeasedWorker
from parrot_models import worker_of

STEPS, STEPS_A_COMMIT = 20, 5
AT = {"at_s": 1_800_000_100.0, "lease": 1}
TABLE = b"step,train_loss\n1,0.5\n"


class SimulatedWorker:
    """Works in the background, until it is told to stop."""

    def __init__(self, app: AppState) -> None:
        self._app = app
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> "SimulatedWorker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        app, answering = self._app, worker_of(self._app)
        with ThreadPoolExecutor(1) as pool:
            delivery = WebhookDelivery(app.jobs.store, app.clock, allowed_hosts=app.webhook_hosts, pool=pool)
            courier = LeasedWorker(app.jobs.store, [delivery], name="w", clock=app.clock)
            while not self._is_over.wait(0.05):
                while answering.poll():
                    pass
                for job_id in app.jobs.ids():
                    app.jobs.log(job_id).append(self._next)
                courier.poll()

    def _next(self, state: JobState | None) -> JobEntry | None:
        if state is None:
            return None
        was_paused = any(isinstance(entry, PauseRequested) for entry in state.entries)
        match state.status:
            case "validating_files":
                concrete = {"n_epochs": 6, "batch_size": 32, "learning_rate_multiplier": 1.0}
                return JobValidated(
                    **AT,
                    run_id="r",
                    num_rows=9,
                    dataset_fingerprint="f",
                    num_steps=STEPS,
                    hyperparameters=concrete,
                )
            case "queued":
                if state.planned is None:
                    return LaunchPlanned(**AT, number=1)
                return LaunchStarted(**AT, number=1, where="process 1 on host", step=state.last_step)
            case "pausing":
                return RunLeft(**AT, step=state.last_step)
            case "running" if state.last_step < (STEPS if was_paused else 2 * STEPS_A_COMMIT):
                self._app.jobs.note_model(state.created)
                return self._checkpoint(state.last_step)
            case "running" if was_paused:
                return self._succeeded(state)
        return None

    def _checkpoint(self, behind: int) -> JobCheckpoint:
        steps = range(behind + 1, behind + STEPS_A_COMMIT + 1)
        points = tuple(MetricPoint(step=step, at_s=AT["at_s"], values={"train_loss": 1 / step}) for step in steps)
        retained = tuple(range(STEPS_A_COMMIT, steps[-1] + 1, STEPS_A_COMMIT))
        return JobCheckpoint(
            **AT, step=steps[-1], weights_digest=f"w{steps[-1]}", retained_steps=retained, points=points
        )

    def _succeeded(self, state: JobState) -> JobSucceeded:
        job_id, project = state.created.job_id, state.created.project
        self._app.outbox.enqueue(job_id, "fine_tuning.job.succeeded", project=project, ended_s=AT["at_s"])
        file_id = derived_id("file", job_id)
        sink = self._app.files.sink(file_id)
        sink.write(TABLE)
        sink.finish()
        self._app.files.put(
            FileCreated(
                file_id=file_id, project=project, at_s=AT["at_s"], filename="step_metrics.csv",
                purpose="fine-tune-results", num_bytes=sink.num_bytes, sha256=sink.sha256,
                content=file_id,
            )
        )  # fmt: skip
        return JobSucceeded(
            **AT, step=STEPS, weights_digest=f"w{STEPS}", result_file=file_id, trained_tokens=99, measured={}
        )
