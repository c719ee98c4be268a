"""--log-format json on real processes: a run with a killed rank, a worker with a job that fails, ranks' own lines."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.base.clock import SystemClock
from assay.serving.openai.app_state import AppState
from assay.store.home import Home
from assay.store.objects import open_store
from sample_project import SampleProjects
from unit.dashboard.accepted import accept_job

COMMAND = [sys.executable, "-c", "from assay.cli.main import main; main()"]


def lines_of(home: Path, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """Run a command; return the objects on its stderr."""
    environment = {**os.environ, "ASSAY_HOME": str(home)}
    command = [*COMMAND, *arguments, "--log-format", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stderr.split("\n")[:-1]]


@pytest.mark.slow
def test_a_run_whose_rank_is_killed_logs_objects_that_name_the_run(
    sample_projects: SampleProjects, tmp_path: Path
) -> None:
    home = sample_projects.copy_to(tmp_path / "project")
    recipe, faults = tmp_path / "project" / "recipe.yaml", tmp_path / "project" / "kill.yaml"
    lines = lines_of(home, "train", str(recipe), "--run-id", "logged", "--workers", "2", "--faults", str(faults))
    of_run = [line for line in lines if line.get("run") == "logged"]
    messages = [line["message"] for line in of_run]
    assert any("attempt 1 begins" in text for text in messages) and any("attempt 2 begins" in text for text in messages)
    assert any("SIGKILL" in text for text in messages)
    assert {line["logger"] for line in of_run} == {"assay.train"} and not messages[0][:4].isdigit()


def test_an_error_of_the_user_is_one_object(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "runs", "train", "--resume", "missing", code=2)
    (line,) = [line for line in lines if line["level"] == "error"]
    assert line["message"].startswith("error: ") and "missing" in line["message"]


def test_a_worker_names_the_job_that_failed(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "runs")
    api = AppState.of(open_store(str(home.api)), {}, SystemClock())
    job_id = accept_job(api, model='ti"ny\n')
    arguments = ("--until-idle", "--engines", "0", "--every", "0.05", "--metrics-address", "127.0.0.1:0")
    lines = lines_of(home.folder, "serve", "worker", *arguments)
    (failed,) = [line for line in lines if " failed" in line["message"]]
    assert failed["job"] == job_id and failed["logger"] == "assay.serve.worker"
    assert any(line["message"].startswith("metrics at http://127.0.0.1:") for line in lines)
    assert api.jobs.state(job_id).status == "failed"
