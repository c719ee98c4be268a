"""The run of a job that `assay serve worker` goes on with is nobody else's to wake."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.main import cli
from assay.records.fine_tuning_job import JobCreated
from assay.records.run import Run
from assay.serving.ids import new_id
from assay.serving.jobs import JobRepository
from assay.store.home import Home
from assay.store.objects import open_store
from tiny_recipe import tiny_recipe


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job that waits, and its run."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    home, job_id = Home.at(tmp_path), new_id("ftjob", 1_800_000_000.0)
    created = JobCreated(
        job_id=job_id, project="p", at_s=0.0, model="tiny", base={}, method="classification",
        hyperparameters={}, training_file="file-" + "0" * 24, seed=0, request_sha256="",
    )  # fmt: skip
    JobRepository(open_store(str(home.api)), SystemClock()).put(created)
    folder = home.run_dir(job_id)
    folder.mkdir()
    run = Run(
        run_id=job_id, created_s=0.0, recipe=tiny_recipe(), recipe_sha256="", dataset_fingerprint="",
        code_version="", run_dir=str(folder), store_url=str(folder), num_steps=10,
    )  # fmt: skip
    (folder / "run.json").write_text(run.to_json())
    return job_id


def refusal(*arguments: str) -> str:
    error = CliRunner().invoke(cli, ["train", "--resume", *arguments]).exception
    assert isinstance(error, ConfigError), error
    return str(error)


def test_a_person_does_not_go_on_with_it(job: str) -> None:
    assert "'assay serve worker' continues it automatically" in refusal(job)


def test_a_scheduler_does_not_once_it_is_to_rest(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    for name, value in {"NTASKS": "1", "STEP_NUM_NODES": "1", "JOB_ID": "1", "NODEID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    JobRepository(open_store(str(Home.from_environment().api)), SystemClock()).pause(job)
    assert "which is paused. Resume it over the API" in refusal(
        job, "--on", "nodes", "--node", "0", "--workers-per-node", "1"
    )
