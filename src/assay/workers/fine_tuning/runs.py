"""Runs of jobs: created from the job's files and the base model's recipe, launched and watched.

    $ASSAY_HOME/api/datasets/JOB/   rows.jsonl, shards, manifest; an interrupted build continues
    $ASSAY_HOME/JOB/                the run; its id is the job's, so it is created once

The run is an ordinary run: `assay runs show`, `audit` and `replay` work, and it outlives the worker.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from assay.base.clock import Clock, SystemClock
from assay.base.errors import StoreAwayError, StoreError, TrainingError
from assay.launchers.launcher import Launcher
from assay.launchers.launches import kill, last_launch, last_words, state_of, stop, waiting_words
from assay.records.fine_tuning_job import JobCheckpoint, JobCreated, JobSucceeded, JobValidated
from assay.records.launch import Launch
from assay.records.run import Run
from assay.records.uploaded_file import FileCreated
from assay.serving.base_models import concrete_hyperparameters, job_recipe, stored_base
from assay.serving.files import FileRepository
from assay.serving.ids import derived_id, new_id
from assay.serving.methods import SERVED_METHODS
from assay.statistics.predictions import EVALUATION_FILE, evaluation_folder, load_evaluation
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.launches import saved_launches
from assay.store.logs.retained_checkpoints import RetainedCheckpoints
from assay.store.metrics.recorded import recorded_series
from assay.store.objects import open_store
from assay.store.run_results import saved_audit
from assay.training.recipe import recipe_of
from assay.workers.fine_tuning.budgets import AttemptTime, close_on_paper, held_by, record_in_ledger
from assay.workers.fine_tuning.job_dataset import build_job_dataset, job_split
from assay.workers.fine_tuning.job_metrics import Series, evaluated, is_shown, result_table, step_points
from assay.workflows.run import VALIDATION, check_new, finished_entry, load_run, plan_run, save_run

if TYPE_CHECKING:
    from assay.data.dataset.dataset import Dataset

MAX_METRIC_EVENTS = 10_000
RESULT_PURPOSE = "fine-tune-results"
ResultT = TypeVar("ResultT")


class RunProgress(NamedTuple):
    """Progress of a launched run."""

    is_living: bool
    """Whether its launch may still be running."""
    is_done: bool
    """Whether it was trained, evaluated and audited completely."""
    step: int
    """Step of its last commit; 0 without one."""
    failure: str = ""
    """Why it would fail again; empty if a new launch may succeed."""
    last_words: str = ""
    """End of the ended launch's output."""
    waits_for: str = ""
    """Reason of the scheduler that queues its launch; empty if it runs."""


class RunsOfHome:
    """Runs of an assay home."""

    def __init__(self, home: Home, files: FileRepository, launcher: Launcher, clock: Clock | None = None) -> None:
        self._home = home
        self._files = files
        self._launcher = launcher
        self._clock = clock or SystemClock()

    def prepare(self, created: JobCreated, lease: int) -> JobValidated:
        """Build dataset and run. Raises `InvalidFileError` or another `AssayError`."""
        base = stored_base(created.base, where=f"job {created.job_id}: its base model")
        method, trainable = SERVED_METHODS[created.method], base.methods[created.method]
        hyperparameters = concrete_hyperparameters(trainable, method, created.hyperparameters)
        run_id = created.job_id
        if not self._home.has_run(run_id):
            folder = self._home.api / "datasets" / created.job_id
            build_job_dataset(folder, self._files, created, base=base, trainable=trainable, method=method)
            loaded = job_recipe(
                trainable,
                method,
                hyperparameters,
                name=created.model,
                dataset=str(folder),
                split=job_split(created, trainable),
                seed=created.seed,
                grader=created.grader,
            )
            run = plan_run(self._home, loaded, world_size=base.workers, run_id=run_id, store_url=None)
            own = {name for name, value in created.hyperparameters.items() if value != "auto"}
            changed = [key for name, key in method.hyperparameters.items() if name in own]
            check_new(recipe_of(run), _dataset(run), changed=changed)
            save_run(self._home, run)
        run = load_run(self._home, run_id)
        return JobValidated(
            at_s=self._clock.now_s(),
            lease=lease,
            run_id=run_id,
            num_rows=_dataset(run).manifest.num_rows,
            dataset_fingerprint=run.dataset_fingerprint,
            num_steps=run.num_steps,
            hyperparameters=hyperparameters,
        )

    def next_launch(self, run_id: str) -> int:
        """Return the number of the run's next launch."""
        return len(saved_launches(self._home.run(run_id))) + 1

    def launch_from(self, run_id: str, number: int) -> Launch | None:
        """Return the run's newest launch if its number is at least `number`."""
        launch = last_launch(self._home.run(run_id))
        return launch if launch is not None and launch.number >= number else None

    def start(self, created: JobCreated, run_id: str) -> Launch:
        """Launch the run, unless a launch is running; return the launch."""
        run = self._home.run(run_id)
        launch = last_launch(run)
        if launch is not None and _of_scheduler(launch, state_of) != "ended":
            return launch  # a second supervisor would fence the first
        base = stored_base(created.base, where=f"job {created.job_id}: its base model")
        RetainedCheckpoints(open_store(run.store_url), self._clock).open_to_others()
        return self._launcher.start(run, world_size=base.workers)

    def stop(self, launch: Launch) -> None:
        """Request a commit and a stop."""
        if _of_scheduler(launch, state_of) != "elsewhere":
            stop(launch)

    def end(self, launch: Launch) -> None:
        """Kill the launch; work after its last commit is lost."""
        if _of_scheduler(launch, state_of) != "elsewhere":
            kill(launch)

    def held(self, run_id: str) -> list[AttemptTime]:
        """Return the device time by attempt, so far."""
        run = self._home.run(run_id)
        return held_by(run, open_store(run.store_url), now_s=self._clock.now_s())

    def final_times(self, run_id: str, *, seen_s: float) -> list[AttemptTime]:
        """Likewise for a run without a supervisor; `seen_s`: when it was last alive."""
        run = self._home.run(run_id)
        if closed := close_on_paper(run, self._log(run), seen_s=seen_s):
            with suppress(StoreError), self._home.open_ledger() as ledger:  # the ledger is an index and can be rebuilt
                record_in_ledger(ledger, run, closed)
        return self.held(run_id)

    def progress(self, launch: Launch) -> RunProgress:
        launch_state = _of_scheduler(
            launch, state_of
        )  # read first, so that a run that ends meanwhile is handled by the next poll
        is_living = launch_state != "ended"
        run = self._home.run(launch.run_id)
        log = self._log(run)
        summary = log.summary()
        step = summary.commits[-1].step if summary.commits else 0
        finished = finished_entry(log)
        if finished is None:
            if is_living:
                reason = _of_scheduler(launch, waiting_words) if launch_state == "queued" else ""
                return RunProgress(True, False, step, waits_for=reason)
            return RunProgress(False, False, step, _failure(run, launch), _of_scheduler(launch, last_words))
        audit = saved_audit(run.run_dir)
        folder = evaluation_folder(Path(run.run_dir), step=finished.step, split=VALIDATION)
        is_done = audit is not None and (folder / EVALUATION_FILE).is_file()
        failed = audit is not None and audit.verdict == "fail"
        return RunProgress(
            is_living, is_done, step, "The run's audit failed: see 'assay runs audit'." if failed else ""
        )

    def commits_after(self, run_id: str, step: int, lease: int) -> list[JobCheckpoint]:
        """Return commits after `step`, with their metrics."""
        run = self._home.run(run_id)
        commits = self._log(run).commits()
        new = {commit.step: commit for commit in commits if commit.step > step}
        if not new:
            return []
        retained = tuple(sorted({commit.step for commit in commits if commit.step}))
        series = recorded_series(Path(run.run_dir), is_shown)
        stride = math.ceil(run.num_steps / MAX_METRIC_EVENTS)
        found, last = [], step
        for commit in sorted(new.values(), key=lambda commit: commit.step):
            steps = [
                number for number in range(last + 1, commit.step + 1) if number % stride == 0 or number == commit.step
            ]
            checkpoint = JobCheckpoint(
                at_s=commit.committed_s,
                lease=lease,
                step=commit.step,
                weights_digest=commit.weights_digest,
                retained_steps=retained,
                points=tuple(step_points(run, series, steps, commit.committed_s)),
            )
            found.append(checkpoint)
            last = commit.step
        return found

    def result(self, created: JobCreated, run_id: str, lease: int) -> JobSucceeded:
        """Write the result file of a finished run."""
        run = self._home.run(run_id)
        finished = finished_entry(self._log(run))
        assert finished is not None, "asked of a run that is done"
        series = recorded_series(Path(run.run_dir), lambda name: is_shown(name) or name == "tokens")
        folder = evaluation_folder(Path(run.run_dir), step=finished.step, split=VALIDATION)
        measured = {
            metric.metric.name: metric.estimate.value
            for metric in load_evaluation(folder).overall.measured
            if metric.estimate is not None
        }
        return JobSucceeded(
            at_s=self._clock.now_s(),
            lease=lease,
            step=finished.step,
            weights_digest=finished.weights_digest,
            result_file=self._result_file(created, run, series),
            trained_tokens=int(sum(series.get("tokens", {}).values())),
            measured=measured,
            validation=evaluated(run, finished.step),
        )

    def _result_file(self, created: JobCreated, run: Run, series: Series) -> str:
        file_id = derived_id("file", created.job_id)
        data = result_table(run, series).encode()
        sink = self._files.sink(name := new_id("file", self._clock.now_s()))
        sink.write(data)
        sink.finish()
        self._files.put(
            FileCreated(
                file_id=file_id,
                project=created.project,
                at_s=self._clock.now_s(),
                filename="step_metrics.csv",
                purpose=RESULT_PURPOSE,
                num_bytes=sink.num_bytes,
                sha256=sink.sha256,
                content=name,
            )
        )
        return file_id

    def _log(self, run: Run) -> CommitLog:
        return CommitLog(open_store(run.store_url))


def _of_scheduler(launch: Launch, query: Callable[[Launch], ResultT]) -> ResultT:
    """Call `query`; an unavailable scheduler is a temporary error."""
    try:
        return query(launch)
    except TrainingError as error:
        raise StoreAwayError(f"run {launch.run_id}: {launch.where()} could not be queried: {error}") from error


def _dataset(run: Run) -> "Dataset":
    from assay.data.dataset.dataset import Dataset

    return Dataset.open(Path(recipe_of(run).data.dataset))


def _failure(run: Run, launch: Launch) -> str:
    """Return why a stopped run would fail again; empty if its supervisor died or it was asked to stop."""
    since = [attempt for attempt in saved_attempts(Path(run.run_dir)) if attempt.started_s >= launch.started_s]
    if since and since[-1].outcome == "failed":
        return since[-1].reason or "its last attempt failed"
    return ""
