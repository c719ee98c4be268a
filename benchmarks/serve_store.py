"""A home in which very many jobs have ended, for `serve.py`: their logs entry by entry, as workers write them.

What a store makes durable is not waited for here, or a hundred thousand jobs would take hours to make.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from assay.base.clock import SystemClock
from assay.records.fine_tuning_job import (
    JobAcquired,
    JobCheckpoint,
    JobCreated,
    JobEntry,
    JobSucceeded,
    JobValidated,
    LaunchPlanned,
    LaunchStarted,
    MetricPoint,
)
from assay.serving.admin.projects import ProjectRepository
from assay.serving.base_models import read_base_models
from assay.serving.ids import index_key, new_id
from assay.serving.job import JOB_LOG
from assay.serving.keys import KeyRepository
from assay.store.home import Home
from assay.store.logs.entry import entry_text
from assay.store.logs.entry_log import BRIEF, brief_text
from assay.store.objects import open_store

PROJECT = "bench"
APART_S = 300.0
"""Between two jobs: a hundred thousand are those of a year."""
LONG_JOB_STEPS, STEPS_A_COMMIT = 10_000, 100
SECRET_FILE, LONG_JOB_FILE, CREATED_FILE = "secret", "long_job", "made"


def make_home(folder: Path, num_jobs: int, models: Path) -> Home:
    """The home with so many jobs, and one of ten thousand steps; made once."""
    home = Home.at(folder)
    created = folder / CREATED_FILE
    if created.exists() and int(created.read_text()) == num_jobs:
        return home
    if folder.exists():
        raise SystemExit(f"{folder}: another home, or one that was not made to its end. Delete it.")
    base = read_base_models(models)["tiny"].config.model_dump(mode="json")
    now_s = SystemClock().now_s()
    for number in range(num_jobs):
        at_s = now_s - (num_jobs - number) * APART_S
        job_id = new_id("ftjob", at_s)
        _write(home.api, job_id, [*_life(job_id, base, at_s, num_steps=10, steps_a_commit=10)])
    long_id = new_id("ftjob", now_s)
    _write(
        home.api, long_id,
        [*_life(long_id, base, now_s, num_steps=LONG_JOB_STEPS, steps_a_commit=STEPS_A_COMMIT)],
    )  # fmt: skip
    ProjectRepository(open_store(str(home.api)), SystemClock()).ensure(PROJECT, by="")
    key = KeyRepository(open_store(str(home.api)), SystemClock()).make(
        project=PROJECT, name="bench", scopes=("read", "write"), lives_s=None
    )
    (folder / SECRET_FILE).write_text(key.secret)
    (folder / LONG_JOB_FILE).write_text(long_id)
    created.write_text(str(num_jobs))
    return home


def _life(
    job_id: str, base: dict[str, object], at_s: float, *, num_steps: int, steps_a_commit: int
) -> Iterator[JobEntry]:
    yield JobCreated(
        job_id=job_id, project=PROJECT, at_s=at_s, model="tiny", base=base, method="classification",
        hyperparameters={"n_epochs": 2}, training_file=new_id("file", at_s), seed=7, request_sha256="0" * 64,
        metadata={"team": "bench"},
    )  # fmt: skip
    yield JobAcquired(at_s=at_s + 1, lease=1, worker="process 1 on host")
    yield JobValidated(
        at_s=at_s + 2, lease=1, run_id=job_id, num_rows=1_000, dataset_fingerprint="0" * 64,
        num_steps=num_steps,
        hyperparameters={"n_epochs": 2, "batch_size": 32, "learning_rate_multiplier": 1.0},
    )  # fmt: skip
    yield LaunchPlanned(at_s=at_s + 3, lease=1, number=1)
    yield LaunchStarted(at_s=at_s + 3, lease=1, number=1, where="process 2 on host", step=0)
    for step in range(steps_a_commit, num_steps + 1, steps_a_commit):
        points = tuple(
            MetricPoint(
                step=item,
                at_s=at_s + item,
                values={"train_loss": 1 / item, "learning_rate": 1e-3, "gradient_norm": 1.25},
            )
            for item in range(step - steps_a_commit + 1, step + 1)
        )
        yield JobCheckpoint(
            at_s=at_s + step, lease=1, step=step, weights_digest="0" * 64, retained_steps=(step,), points=points
        )
    yield JobSucceeded(
        at_s=at_s + num_steps + 1, lease=1, step=num_steps, weights_digest="0" * 64,
        result_file=new_id("file", at_s), trained_tokens=99_000, measured={"validation_auc": 0.9},
    )  # fmt: skip


def _write(api: Path, job_id: str, entries: Sequence[JobEntry]) -> None:
    mark = api / index_key(PROJECT, job_id)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    folder = api / "ftjob" / job_id / "log"
    folder.mkdir(parents=True)
    previous = ""
    for number, entry in enumerate(entries):
        name = f"{number:08d}.json"
        data, known = entry_text(entry, f"ftjob/{job_id}/log/{name}", previous)
        (folder / name).write_bytes(data)
        previous = known.sha256
    assert JOB_LOG.light is not None, "a job's entries are long"
    (folder / BRIEF).write_bytes(brief_text([JOB_LOG.light(entry) for entry in entries], previous))
